"""Errors of servers as OpenAI's error object: one table of statuses for all dialects."""

import math
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final

import msgspec

from headrace.api.problems import Problem, ProblemBody
from headrace.fleet.backends import reading
from headrace.fleet.backends.values import Refusal

#: What is told of an error text at most.
MAX_MESSAGE_CHARS: Final = 2000
#: Longest wait that a server's word is taken for.
MAX_RETRY_AFTER: Final = 3600.0

#: Status → OpenAI's `type` and `code`.
_TYPES: Final[Mapping[int, tuple[str, str | None]]] = {
    400: ("invalid_request_error", None),
    401: ("authentication_error", "invalid_api_key"),
    403: ("permission_error", "permission_denied"),
    404: ("invalid_request_error", "not_found"),
    408: ("timeout_error", "timeout"),
    413: ("invalid_request_error", "body_too_large"),
    422: ("invalid_request_error", None),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    503: ("service_unavailable_error", "service_unavailable"),
    504: ("timeout_error", "timeout"),
    # Anthropic's "overloaded".
    529: ("service_unavailable_error", "overloaded"),
}
#: Statuses that are said in other numbers than OpenAI's clients know.
_AS: Final[Mapping[int, int]] = {422: 400, 424: 502, 529: 503}
_OVERLOADED: Final = frozenset({429, 503, 529})


def refusal(
    status: int,
    message: str,
    *,
    code: str | None = None,
    retry_after: float | None = None,
    is_of_model: bool = False,
) -> Refusal:
    """An error with OpenAI's status, type and code; `code` overrides the table's."""
    kind, usual = _TYPES.get(
        status, ("server_error" if status >= 500 else "invalid_request_error", None)
    )
    problem = Problem(
        message=message[:MAX_MESSAGE_CHARS] or f"The server answered with status {status}.",
        type=kind,
        code=code or usual,
    )
    return Refusal(
        status=_AS.get(status, status),
        body=msgspec.json.encode(ProblemBody(error=problem)),
        retry_after=retry_after,
        is_overload=status in _OVERLOADED,
        is_of_model=is_of_model,
    )


def passed_on(status: int, headers: Mapping[str, str], body: bytes) -> Refusal:
    """An error of a server that speaks OpenAI's shape, or something near it: its object stays as it is."""
    value = reading.table(reading.decode(body))
    error = value.get("error")
    retry_after = retry_after_of(headers)
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return Refusal(
            status=status, body=body, retry_after=retry_after, is_overload=status in _OVERLOADED
        )
    return refusal(status, message_of(value, body), retry_after=retry_after)


def message_of(value: Mapping[str, Any], body: bytes) -> str:
    """The sentence in an error body, wherever servers put it: vLLM's `message`, FastAPI's `detail`, plain text."""
    for found in (
        value.get("error"),
        value.get("message"),
        value.get("Message"),
        value.get("detail"),
    ):
        if isinstance(found, str) and found:
            return found
        if isinstance(found, dict) and isinstance(found.get("message"), str):
            return str(found["message"])
    said = body.decode(errors="replace").strip()
    return "" if said.startswith(("<", "{", "[")) else said


def retry_after_of(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Seconds of `retry-after-ms` or `retry-after` (a number, or a date when `now` is known, Unix time)."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        said = headers.get(name)
        if said is None:
            continue
        try:
            seconds = float(said) * scale
        except ValueError:
            seconds = _until(said, now)
        if math.isfinite(seconds) and seconds >= 0:
            return min(seconds, MAX_RETRY_AFTER)
    return None


def _until(date: str, now: float | None) -> float:
    if now is None:
        return math.nan
    try:
        return max(0.0, parsedate_to_datetime(date).timestamp() - now)
    except (TypeError, ValueError, OverflowError):
        return math.nan
