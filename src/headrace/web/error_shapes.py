"""In whose shape an error leaves: what was called decides, also where no route was reached."""

from collections.abc import Callable
from typing import Final

import msgspec

from headrace.api.messages import ErrorBody, ErrorDetail
from headrace.web.asgi import Scope
from headrace.web.problems import Answer
from headrace.web.streaming import DONE, event, named_event

_MESSAGES: Final = "/v1/messages"
_RESPONSES: Final = "/v1/responses"
_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_writer_of(scope: Scope) -> Callable[[Answer], bytes]:
    """Anthropic's under its own path, with the request's name; else OpenAI's."""
    path = scope["path"]
    if path != _MESSAGES and not path.startswith(f"{_MESSAGES}/"):
        return _openai_error
    request_id = scope["headrace.request_id"]
    return lambda answer: msgspec.json.encode(anthropic_error(answer, request_id))


def _openai_error(answer: Answer) -> bytes:
    return answer.body


def anthropic_error(answer: Answer, request_id: str | None = None) -> ErrorBody:
    """An error in Anthropic's words; the status stays ours. The sentence names the field."""
    default = "invalid_request_error" if answer.status < 499 else "api_error"
    kind = _TYPES.get(answer.status, default)
    return ErrorBody(
        error=ErrorDetail(type=kind, message=answer.problem.message), request_id=request_id
    )


def broken_stream(path: str, answer: Answer, num_events: int) -> bytes:
    """The end of a stream that broke off behind so many events, as clients of this API expect it."""
    if path == _MESSAGES:
        return named_event(msgspec.json.encode(anthropic_error(answer)))
    problem = answer.problem
    if path == _RESPONSES:
        told = {
            "type": "error",
            "sequence_number": num_events,
            "code": problem.code,
            "message": problem.message,
            "param": problem.param,
            "error": problem,
        }
        return named_event(msgspec.json.encode(told))
    return event(msgspec.json.encode({"error": problem})) + DONE
