"""What leaves the engine: events, each about one sequence of one request."""

from enum import StrEnum

from msgspec import Struct


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"
    """An end-of-sequence token, a stop token, or a stop string."""
    LENGTH = "length"
    """max_tokens, or the context is full."""
    TIMEOUT = "timeout"
    """The request's deadline passed."""
    SHUTDOWN = "shutdown"
    """The server ends, and its patience with what ran is over."""
    CANCELLED = "cancelled"
    """The client went away, or cancelled by id."""
    ERROR = "error"
    """`TokenEvent.error` says what."""


class TokenLogprobs(Struct, frozen=True, array_like=True):
    """Log-probabilities at one output position, of the raw distribution."""

    token_id: int
    logprob: float
    rank: int
    """1 for the most likely token."""
    top: tuple[tuple[int, float], ...] = ()
    """The best (token id, log-probability) pairs, best first."""


class RequestTimes(Struct, frozen=True, array_like=True):
    """`Clock.monotonic` seconds at which a request passed each gate."""

    arrival: float
    queued: float
    first_scheduled: float
    first_token: float


class TokenEvent(Struct, frozen=True, array_like=True, omit_defaults=True):
    """0..k+1 new tokens of one sequence, and perhaps its end."""

    request_id: str
    index: int
    """Which of the request's n sequences."""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    """As many as `token_ids` when asked for, else none."""
    finish: FinishReason | None = None
    stop_token_id: int | None = None
    """The token id that ended it, when one did (it is the last of `token_ids`)."""
    num_cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache (on the first event of a sequence)."""
    times: RequestTimes | None = None
    """On the first and on the last event of a sequence."""
    error: str | None = None
    error_kind: str | None = None
    """Name of a class in `core.errors`, with `error`."""
    vector: bytes | None = None
    """What became of a text that was pooled: float32, little endian. On its only event."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """More of the prompt's, in order from its second token on; each comes once for a request, with
    whichever of its sequences computed it, and before any token of any of them."""
    num_prompt_computed: int = 0
    """Where the request asked for it, on an event of its own: prompt tokens that are there so far, not yet all."""
