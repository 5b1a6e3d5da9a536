"""Why a model did not answer, in the words of fallbacks."""

from headrace.config.fleet.models import Cause
from headrace.core.errors import (
    BadGatewayError,
    BadRequestError,
    GatewayTimeoutError,
    HeadraceError,
    OverloadedError,
    UnavailableError,
)
from headrace.fleet.gateway.exchange import RefusedError


def cause_of(error: HeadraceError) -> Cause | None:
    """None: no fallback is for it."""
    kinds: tuple[tuple[type[HeadraceError], Cause], ...] = (
        (GatewayTimeoutError, Cause.TIMEOUT),
        (BadGatewayError, Cause.ERROR),
        (OverloadedError, Cause.OVERLOADED),
        (UnavailableError, Cause.UNAVAILABLE),
        (BadRequestError, Cause.REFUSED),
    )
    return next((cause for kind, cause in kinds if isinstance(error, kind)), None)


def cause_of_refusal(error: RefusedError) -> Cause:
    """What a replica says against a request."""
    is_long = b"context_length_exceeded" in error.refusal.body
    return Cause.CONTEXT if is_long else Cause.REFUSED
