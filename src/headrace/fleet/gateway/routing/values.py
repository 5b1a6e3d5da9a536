"""The values that policies decide over: a request, the replicas that could serve it, and the decision."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import Struct


class Query(Struct, frozen=True, kw_only=True):
    """A request as far as routing looks at it."""

    session: str = ""
    """What it should stay together with; empty: nothing."""
    prompt_tokens: int = 0
    """Estimated."""
    output_tokens: int = 0
    """Its bound, or what is expected of it if that is less."""
    number: int = 0
    """It is the n-th request of its model: round robin goes by it."""
    draw: float = 0.0
    """Uniform in [0, 1): all chance that a policy may use. Ties are broken by it, never by position."""


class Candidate(Struct, frozen=True, kw_only=True):
    """A replica that may serve the request, as it is at this moment. Loads are counted by the gateway itself."""

    id: str
    weight: float = 1.0
    """Capacity beside others'; slow start and slow replicas have it lowered."""
    num_requests: int = 0
    """Requests that it has of us."""
    prefill_tokens: int = 0
    """Uncached prompt tokens of requests whose first token has not come."""
    decode_tokens: int = 0
    """Output tokens that its requests may still make."""
    cached_tokens: int = 0
    """Tokens of this request's prompt that it probably has in its prefix cache."""
    ttft: float | None = None
    """Seconds to the first token, moving average over its requests; None: not known, or long ago."""
    tpot: float | None = None
    """Seconds per output token, moving average."""
    prefill_rate: float = 1000.0
    """Uncached prompt tokens per second that it computes while there are any."""
    max_requests: int = 256
    """Requests that it should have at once; at that number it is saturated."""


class Kept(NamedTuple):
    """What a filter leaves, and a few words where those belong into the decision's reason."""

    candidates: Sequence[Candidate]
    words: str = ""


Filter = Callable[[Query, Sequence[Candidate]], Kept]
"""Leaves some of the candidates; must leave at least one of at least one."""
Scorer = Callable[[Query, Sequence[Candidate]], Sequence[float]]
"""One number per candidate, in order; higher is better."""


class Decision(Struct, frozen=True, kw_only=True):
    """Which replica, and why, in a form that a header can carry."""

    replica_id: str
    policy: str
    reason: str
    """Words and numbers that led here: `warm 0.93, wait 0.2 s; 3 of 4 candidates`."""
    cached_tokens: int = 0
