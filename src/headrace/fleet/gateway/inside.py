"""Whose fault it is when a stream of the status 200 tells of a failure inside of it. Pure.

Servers of OpenAI's shape put an error object into an event (`error`; older ones of vLLM `object: error`), end a choice with the
finish reason `error`, or both at once, as OpenRouter does: https://openrouter.ai/docs/api/reference/streaming.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headrace.fleet.backends import reading
from headrace.fleet.upstream.failure import FailureKind, UpstreamError

#: In an event that tells of an error: the server has no room. Anthropic says so in a stream with the status 200.
_FULL: Final = re.compile(
    rb'"type":\s*"(?:overloaded_error|rate_limit_error)"|"code":\s*"?(?:429|503|529|overloaded|rate_limit_exceeded)\b'
)
#: Where servers put the status that an answer with this error would have had.
_STATUS: Final = ("code", "status", "http_status_code", "status_code")
#: What errors are called that are the request's own fault, by type or code, in lower case.
_WRONG: Final = frozenset(
    {
        "invalid_request_error", "badrequesterror", "bad_request", "invalid_prompt", "validation",
        "content_filter", "content_policy_violation", "context_length_exceeded", "string_above_max_length",
        "unprocessableentityerror",
    }
)  # fmt: skip


class ToldError(UpstreamError):
    """A server says that the request is wrong; `status` and `body` are what it would have said in place of an answer."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(FailureKind.MODEL, f"status {status} inside of an answer")
        self.status = status
        self.body = body


def failure_of(chunk: Mapping[str, Any], said: bytes) -> UpstreamError:
    """What an event that tells of a failure (`said`, which means `chunk`) comes to.

    One that is full has not failed. One that calls the request wrong is well. Else it has failed, but perhaps at this request
    alone, which is found out by what becomes of the request elsewhere (`is_doubtful`).
    """
    if _FULL.search(said):
        return UpstreamError(FailureKind.OVERLOADED, _short(chunk, said))
    error = chunk.get("error")
    status = _status_of(error if isinstance(error, dict) else chunk)
    if status:
        has_object = isinstance(error, dict) and isinstance(error.get("message"), str)
        names = ("type", "error") if has_object else ("error", "message", "detail")
        told = {name: chunk[name] for name in names if name in chunk}
        return ToldError(status, msgspec.json.encode(told))
    return UpstreamError(FailureKind.STATUS, _short(chunk, said), is_doubtful=True)


def _status_of(error: Mapping[str, Any]) -> int:
    """From 400 to 499; 0: it does not say that the request is wrong."""
    for name in _STATUS:
        given = error.get(name)
        number = int(given) if isinstance(given, str) and re.fullmatch("[0-9]{3}", given) else given
        if isinstance(number, int) and not isinstance(number, bool) and 400 <= number <= 599:
            return number if number < 500 else 0
    words = (error.get(name) for name in ("type", "code", "error_type"))
    return 400 if any(reading.text(word).lower() in _WRONG for word in words) else 0


def _short(chunk: Mapping[str, Any], said: bytes) -> str:
    """For the log."""
    return str(chunk.get("error") or said.decode("utf-8", "replace"))[:200]
