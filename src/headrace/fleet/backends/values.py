"""The words between the gateway and a dialect: what is asked, what is sent, what comes back."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Protocol

from msgspec import Struct

from headrace.api.usage import Usage
from headrace.config.fleet.replicas import Dialect

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"


class Continuation(StrEnum):
    """How an answer that broke off can be gone on with."""

    TOKENS = "tokens"
    """From the token ids so far: the rest is exactly what would have come."""
    TEXT = "text"
    """From the text so far: the rest fits it, but tokens may be cut differently at the seam."""
    NONE = "none"


class Incoming(Struct, frozen=True, kw_only=True):
    """A request as its client sent it, in OpenAI's shape, with the model that was resolved in its body."""

    path: str
    """/v1/chat/completions and the like, without a query."""
    body: bytes
    is_stream: bool = False
    request_id: str = ""
    """Becomes the id of translated answers, behind OpenAI's prefix."""
    created: int = 0
    """Seconds since the Unix epoch, for translated answers."""
    sent_at: int = 0
    """When it is sent, for signatures, which are good for minutes: `created` is older where it has waited or is tried again.
    0: the same."""
    owner: str = ""
    """Whom replicas are to keep it for, where they keep things apart; empty: all requests are one owner's."""


class Outgoing(Struct, frozen=True, kw_only=True):
    """What is sent to a replica. The path is absolute on its host; headers are lower-case and hold no client's key."""

    path: str
    body: bytes = b""
    method: str = "POST"
    headers: Mapping[str, str] = {}


class Health(Struct, frozen=True):
    """What a health probe said."""

    is_ready: bool
    reason: str = ""


class Load(Struct, frozen=True, kw_only=True):
    """What a replica says of itself. None means that it did not say: that is not 0."""

    num_running: int | None = None
    num_waiting: int | None = None
    kv_usage: float | None = None
    """Share of its KV cache that requests hold, 0..1."""
    max_running: int | None = None
    """Requests that it runs at once at most."""
    outstanding_tokens: int | None = None
    uptime: float | None = None
    """Seconds since it started."""
    prefix_hit_rate: float | None = None
    """Cached share of the prompt tokens of the last minute, 0..1."""
    busy: float | None = None
    """Share of the last seconds that it computed, 0..1."""
    is_draining: bool = False
    missing: tuple[str, ...] = ()
    """Numbers that this dialect should tell and did not: under none of the names that they have had."""


class ModelCard(Struct, frozen=True, kw_only=True):
    """A model that a replica serves."""

    id: str
    max_context: int | None = None
    parent: str | None = None
    """The model that this adapter belongs to."""


class ResumePoint(Struct, frozen=True, kw_only=True):
    """How far an answer had come when it broke off. It has one choice."""

    text: str = ""
    token_ids: tuple[int, ...] | None = None
    """All tokens so far, if the replica told them."""
    num_tokens: int = 0
    """Tokens so far, counted or estimated."""
    seed: int | None = None
    """The seed that the replica resolved."""
    is_plain: bool = True
    """Only text was sent: no call of a tool and no reasoning had begun."""


class Refusal(Struct, frozen=True, kw_only=True):
    """An error of a replica, as OpenAI would put it."""

    status: int
    body: bytes
    """OpenAI's error object."""
    retry_after: float | None = None
    """Seconds, where it said so."""
    is_overload: bool = False
    """It is full; another replica, or a later time, will do. Nothing is wrong with it or with the request."""
    is_of_model: bool = False
    """The model says that it failed at this request: another try may do better, and nothing is wrong with the replica."""

    @property
    def is_retryable(self) -> bool:
        """Another replica may do better."""
        return self.is_overload or self.status in (408, 425) or self.status >= 500


class AnswerReader(Protocol):
    """Translates one answer, chunk by chunk. Pure: no I/O, bounded memory."""

    content_type: str
    """Of what it writes."""
    usage: Usage | None
    """Known by the end at the latest, if at all."""
    refusal: Refusal | None
    """An error that came inside of the answer; nothing follows it."""
    is_complete: bool
    """The answer has ended as its protocol says, not just stopped."""
    is_cut: bool
    """What follows is not wanted: `finish` it now, and stop listening."""

    def feed(self, chunk: bytes) -> bytes:
        """OpenAI-shaped bytes for these bytes; may be none. Raises StreamError for what cannot be read."""
        ...

    def finish(self) -> bytes:
        """The body has ended. What is left to say; nothing where it was cut (`is_complete` is False then)."""
        ...


class Backend(Protocol):
    """One replica's dialect, bound to its address and keys. Pure; everything that it needs is given to it."""

    @property
    def dialect(self) -> Dialect:
        """Which one."""
        ...

    def health_probe(self) -> Outgoing | None:
        """What to ask for readiness; None: a hosted API, known by its answers alone."""
        ...

    def read_health(self, status: int, body: bytes) -> Health:
        """What the answer means."""
        ...

    def load_probe(self) -> Outgoing | None:
        """What to ask for load; None: it tells none."""
        ...

    def read_load(self, status: int, body: bytes) -> Load:
        """Never raises: what cannot be read is missing."""
        ...

    def models_probe(self) -> Outgoing | None:
        """What to ask for its models; None: they must be configured."""
        ...

    def read_models(self, status: int, body: bytes) -> tuple[ModelCard, ...]:
        """Never raises: none when it cannot be read."""
        ...

    def outgoing(self, call: Incoming) -> Outgoing:
        """The request in its words. Raises BadRequestError naming a field that it has no words for."""
        ...

    def stored(self, method: str, path: str, owner: str) -> Outgoing | None:
        """What asks for a response that it keeps for this owner, or does something with it; None: it keeps none."""
        ...

    def reader(self, call: Incoming, headers: Mapping[str, str]) -> AnswerReader | None:
        """For an answer with status 200 and these headers; None: it is OpenAI-shaped, pass its bytes on."""
        ...

    def refusal(self, status: int, headers: Mapping[str, str], body: bytes) -> Refusal:
        """For an answer with a status of 400 or more."""
        ...

    def resume(self, call: Incoming, progress: ResumePoint) -> Incoming | None:
        """The request that goes on with an answer; None: it cannot be gone on with here."""
        ...

    def abort(self, request_id: str) -> Outgoing | None:
        """What to send beside closing the connection; None: closing is enough, or is all there is."""
        ...
