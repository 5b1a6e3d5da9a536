"""The way of one request through the gateway, as operators are told of it: never with its text."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

#: Tries of one request that are told; of more, the first ones are.
MAX_TRIES = 32
#: Tells a client which replica answered, and why that one.
ROUTE: Final = "x-headrace-route"


class Try(Struct, frozen=True, kw_only=True):
    """One replica that was asked."""

    replica: str
    policy: str
    reason: str
    """Why this one: words and numbers of the policy."""
    outcome: str
    """As the metric of tries has it: ok, refused, cancelled, or a failure's kind."""
    at: float
    """Seconds from the request's arrival."""
    seconds: float
    """How long it was at it."""
    ttft: float | None = None
    """Seconds from then to the first token, of streams."""


class Trip(Struct, frozen=True, kw_only=True):
    """How a request was answered, beside what it came to."""

    endpoint: str
    """Its path."""
    is_stream: bool = False
    is_cached: bool = False
    """Told from the response cache, or shared with another request in flight."""
    answered_by: str = ""
    """The target that answered instead, of a request that fell back."""
    error: str = ""
    """The problem's code, of one that failed."""
    tries: tuple[Try, ...] = ()
    """In the order in which they were done."""


def way_of(tries: Sequence[Try]) -> dict[str, str]:
    """The header that tells the client of a failed request which replica was asked last; none, where no one was."""
    if not tries:
        return {}
    last = tries[-1]
    return {ROUTE: f"{last.replica}; {last.policy}; {last.reason}"}
