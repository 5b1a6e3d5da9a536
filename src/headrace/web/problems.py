"""Exception → status and OpenAI error object: one table."""

import logging
import math

import msgspec

from headrace.api.problems import Problem, ProblemBody
from headrace.core import errors
from headrace.core.errors import HeadraceError

log = logging.getLogger("headrace.server")

Row = tuple[int, str, str | None]
#: Most special first: status, OpenAI's `type`, and the `code` where the exception has none.
_TABLE: tuple[tuple[type[HeadraceError], Row], ...] = (
    (errors.BodyTooLargeError, (413, "invalid_request_error", "body_too_large")),
    (errors.UnsupportedMediaError, (415, "invalid_request_error", "unsupported_media_type")),
    (errors.BadRequestError, (400, "invalid_request_error", None)),
    (errors.AuthenticationError, (401, "authentication_error", "invalid_api_key")),
    (errors.PermissionDeniedError, (403, "permission_error", "permission_denied")),
    (errors.ModelNotFoundError, (404, "invalid_request_error", "model_not_found")),
    (errors.NotFoundError, (404, "invalid_request_error", "not_found")),
    (errors.QueueFullError, (429, "rate_limit_error", "queue_full")),
    (errors.QueueTimeoutError, (429, "rate_limit_error", "queue_timeout")),
    (errors.RequestShedError, (429, "rate_limit_error", "request_shed")),
    (errors.BudgetExceededError, (429, "insufficient_quota", "insufficient_quota")),
    (errors.OverloadedError, (429, "rate_limit_error", "rate_limit_exceeded")),
    (errors.NoReplicaError, (503, "service_unavailable_error", "no_replica")),
    (errors.UnavailableError, (503, "service_unavailable_error", "service_unavailable")),
    (errors.GatewayTimeoutError, (504, "server_error", "gateway_timeout")),
    (errors.BadGatewayError, (502, "server_error", "bad_gateway")),
    (errors.DriverError, (502, "server_error", "driver_error")),
    (errors.DeadlineExceededError, (408, "timeout_error", "deadline_exceeded")),
    (errors.RequestCancelledError, (499, "request_cancelled_error", "request_cancelled")),
    (errors.EngineDeadError, (500, "server_error", "engine_died")),
    (HeadraceError, (500, "server_error", "internal_error")),
)
_UNKNOWN: Row = (500, "server_error", "internal_error")
_CLOSING = (errors.BodyTooLargeError, errors.ConnectionLimitError)
#: Said of faults that are ours; the log has the rest.
_OURS = "The server failed to answer this request."


class HttpError(HeadraceError):
    """A status that no exception of ours stands for (the router's 404 and 405)."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        if headers:
            self.headers = headers


class Answer(msgspec.Struct, frozen=True):
    """An error as it leaves: status, headers and body."""

    status: int
    headers: dict[str, str]
    problem: Problem

    @property
    def body(self) -> bytes:
        """JSON."""
        return msgspec.json.encode(ProblemBody(error=self.problem))


def status_for(error: Exception) -> int:
    """The status alone."""
    if isinstance(error, HttpError):
        return error.status
    return next((row for kind, row in _TABLE if isinstance(error, kind)), _UNKNOWN)[0]


def answer_to(error: Exception) -> Answer:
    """What the client is told. Faults of ours are logged, and not explained."""
    if isinstance(error, HttpError):
        problem = Problem(
            message=str(error), type="invalid_request_error", code=_code(error.status)
        )
        return Answer(error.status, dict(error.headers), problem)
    status, name, code = next((row for kind, row in _TABLE if isinstance(error, kind)), _UNKNOWN)
    if status == 500:
        # An exception of ours says all; any other one is a surprise, and where it came from matters.
        is_surprise = not isinstance(error, HeadraceError)
        log.error("A request failed: %s", error, exc_info=error if is_surprise else None)
    return Answer(status, _headers(error), _problem(error, status, name, code))


def status_of(problem: Problem) -> int:
    """The status that goes with an error object; for those that come in the middle of an answer."""
    rows = [(code, status) for _, (status, name, code) in _TABLE if name == problem.type]
    statuses: dict[str | int | None, int] = dict(reversed(rows))
    general = statuses.get(None, rows[-1][1] if rows else _UNKNOWN[0])
    return statuses.get(problem.code, general)


def error_named(kind: str | None, message: str) -> HeadraceError:
    """The exception that an engine's event names (`TokenEvent.error_kind`)."""
    if kind == "PromptTooLongError":  # its own constructor wants numbers, which are in the message
        return errors.BadRequestError(message, code="context_length_exceeded")
    found = getattr(errors, kind or "", None)
    simple = (
        errors.BadRequestError,
        errors.DeadlineExceededError,
        errors.EngineDeadError,
        errors.GrammarError,
        errors.InternalError,
        errors.NotFoundError,
        errors.OverloadedError,
        errors.RequestCancelledError,
        errors.UnavailableError,
    )
    return found(message) if found in simple else errors.InternalError(message)


def _problem(error: Exception, status: int, name: str, code: str | None) -> Problem:
    is_ours = status == 500 and not isinstance(error, errors.EngineDeadError)
    return Problem(
        message=_OURS if is_ours else str(error),
        type=name,
        param=getattr(error, "param", None),
        code=getattr(error, "code", None) or code,
    )


def _headers(error: Exception) -> dict[str, str]:
    headers = dict(error.headers) if isinstance(error, HeadraceError) else {}
    if isinstance(error, errors.OverloadedError | errors.UnavailableError):
        headers["retry-after"] = str(math.ceil(error.retry_after))
    if isinstance(error, errors.BudgetExceededError):
        # OpenAI's clients try a 429 again by themselves, unless they are told that it is of no use.
        headers["x-should-retry"] = "false"
        if error.retry_after is not None:
            headers["retry-after"] = str(math.ceil(error.retry_after))
    if isinstance(error, errors.AuthenticationError):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, _CLOSING):
        # The rest of the body is not read, or the connection is one too many: it is not used again.
        headers["connection"] = "close"
    return headers


def _code(status: int) -> str:
    known = {404: "not_found", 405: "method_not_allowed", 408: "request_timeout"}
    return known.get(status, "http_error")
