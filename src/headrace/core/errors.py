"""Every exception that headrace raises on purpose.

    HeadraceError
      x BadRequestError            the request is wrong; the client can mend it          400
        - PromptTooLongError       the prompt does not fit the context                   400
        - GrammarError             a schema, pattern or grammar that cannot be used       400
        - BodyTooLargeError        more bytes than the server accepts                    413
        - UnsupportedMediaError    a content type that we do not read                    415
      x AuthenticationError        no key, or a wrong one                                401
      x PermissionDeniedError      a key that may not do this                            403
      x NotFoundError              no such thing                                         404
        - ModelNotFoundError       no such model                                         404
      x OverloadedError            full; come back after `retry_after` seconds           429
        - QueueFullError           no room to wait for a replica                         429
        - QueueTimeoutError        waited for a replica's room as long as its class may  429
        - RequestShedError         turned away, or out of the queue, for higher classes  429
        - RateLimitError           a limit of its key or tenant: requests, tokens, places 429
      x BudgetExceededError        the money of its key or tenant is spent               429
      x UnavailableError           not now: loading, draining or restarting              503
        - ConnectionLimitError     more connections than the server keeps open           503
        - NoReplicaError           a model has had no ready replica for too long         503
      x BadGatewayError            no replica could answer                               502
        - GatewayTimeoutError      no replica answered in time                           504
      x DriverError                a place for replicas cannot be asked, or refused      502
      x DeadlineExceededError      the request's time ran out before its first token     408
      x RequestCancelledError      the client went away                                  499
      x InternalError              our fault                                             500
        - EngineDeadError          the engine process ended while the request ran        500
        - KernelError              a kernel refused its arguments                        500
        - IntegrityError           the KV ledger's counts do not add up                  500
      x ConfigError                what the operator asked for cannot be done           start
        - ModelLoadError           a file that cannot be served, and why                start
          · UnsupportedModelError  an architecture or tensor type that we do not know   start
        - DownloadError            weights that could not be fetched                    start

The server maps them to HTTP in one table (`web/problems.py`); the command line prints the sentence
and exits with 2 for a `ConfigError`, 1 for anything else.
"""

from collections.abc import Mapping
from types import MappingProxyType


class HeadraceError(Exception):
    """Base of all. `str(error)` is one sentence that a user can act on."""

    headers: Mapping[str, str] = MappingProxyType({})
    """Further headers of the answer that tells it."""


class BadRequestError(HeadraceError):
    """The request is wrong. `param` names the field (dotted path), `code` is OpenAI's error code."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class PromptTooLongError(BadRequestError):
    """The prompt does not fit. Carries all numbers, so that a client can decide what to cut.

    `is_least`: it was not counted, and has at least `num_prompt_tokens`.
    """

    def __init__(
        self,
        num_prompt_tokens: int,
        max_context: int,
        *,
        param: str | None = None,
        is_least: bool = False,
    ) -> None:
        super().__init__(
            f"This model's maximum context length is {max_context} tokens, but the prompt has "
            f"{'at least ' if is_least else ''}{num_prompt_tokens} tokens, and one is needed for the answer.",
            param=param,
            code="context_length_exceeded",
        )
        self.num_prompt_tokens = num_prompt_tokens
        self.max_context = max_context


class GrammarError(BadRequestError):
    """A schema, pattern or grammar that is faulty, too complex, or leaves the model no way on."""


class BodyTooLargeError(BadRequestError):
    """The body has more bytes than the server accepts."""


class UnsupportedMediaError(BadRequestError):
    """The content type is not one that this route reads."""


class AuthenticationError(HeadraceError):
    """No key, or a wrong one."""


class PermissionDeniedError(HeadraceError):
    """The key is good, but not for this."""


class NotFoundError(HeadraceError):
    """No such thing."""


class ModelNotFoundError(NotFoundError):
    """No such model. `available` lists those that are served."""

    def __init__(self, model: str, available: tuple[str, ...] = ()) -> None:
        served = f" Served here: {', '.join(available)}." if available else ""
        super().__init__(f"The model '{model}' does not exist.{served}")
        self.model = model
        self.available = available


class OverloadedError(HeadraceError):
    """A bound is reached. `retry_after` is our estimate in seconds, at least 1."""

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = max(1.0, retry_after)


class QueueFullError(OverloadedError):
    """There is no room to wait for a replica."""


class QueueTimeoutError(OverloadedError):
    """It waited for a replica's room as long as its class allows."""


class RequestShedError(OverloadedError):
    """It was turned away, or taken out of the queue, so that higher classes keep their promises."""


class RateLimitError(OverloadedError):
    """Its key or tenant makes more requests or tokens a minute, or more at once, than is agreed."""


class BudgetExceededError(HeadraceError):
    """The money of its key or tenant is spent or set aside.

    `retry_after`: seconds until there may be some again; None: not by waiting.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = None if retry_after is None else max(1.0, retry_after)


class UnavailableError(HeadraceError):
    """Loading, draining or restarting. `retry_after` in seconds."""

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = max(1.0, retry_after)


class ConnectionLimitError(UnavailableError):
    """More connections are open than the server answers on; this one is closed."""


class NoReplicaError(UnavailableError):
    """A model has had no ready replica for as long as a request waits for one."""


class BadGatewayError(HeadraceError):
    """Every replica that was tried failed."""


class GatewayTimeoutError(BadGatewayError):
    """Every replica that was tried took too long."""


class DriverError(HeadraceError):
    """The place where replicas run (this machine, Ray, Kubernetes) cannot be asked, or refused."""


class DeadlineExceededError(HeadraceError):
    """The request's time ran out (in the queue, or before its first token)."""


class RequestCancelledError(HeadraceError):
    """The client went away, or cancelled by id."""


class InternalError(HeadraceError):
    """Our fault; the message says nothing of our insides."""


class EngineDeadError(InternalError):
    """The engine process ended while this request ran."""


class KernelError(InternalError):
    """A kernel refused its arguments: a wrong shape, dtype or bound."""


class IntegrityError(InternalError):
    """The KV ledger's counts do not add up."""


class ConfigError(HeadraceError):
    """What the operator asked for cannot be done."""

    def __init__(self, message: str, *, place: str = "") -> None:
        """`place` is the setting at fault, seen from the table that refuses it, such as `url` or `keys[1].name`."""
        super().__init__(message)
        self.place = place


class ModelLoadError(ConfigError):
    """A file or directory cannot be served; the message says why."""


class UnsupportedModelError(ModelLoadError):
    """An architecture or tensor type that we do not know; the message lists those that we do."""


class DownloadError(ConfigError):
    """Weights could not be fetched or did not have the promised digest."""


def reason_of(error: Exception) -> str:
    """An error of the system in words, without its number."""
    return (isinstance(error, OSError) and error.strerror) or str(error)
