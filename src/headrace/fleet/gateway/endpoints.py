"""The paths that the gateway passes on, and what it needs to know of each."""

from enum import StrEnum
from typing import Final

from msgspec import Struct

from headrace.config.fleet.replicas import Capability


class Kind(StrEnum):
    """What is made."""

    CHAT = "chat"
    """OpenAI's chat completions: can be gone on with elsewhere."""
    COMPLETION = "completion"
    """OpenAI's completions: can be gone on with elsewhere."""
    EVENTS = "events"
    """Text in another API's shape."""
    VECTORS = "vectors"
    TEXT = "text"
    """Tokenizers and templates: no model runs."""


class Endpoint(Struct, frozen=True, kw_only=True):
    """One path."""

    path: str
    kind: Kind
    needs: frozenset[Capability] = frozenset()
    ends: frozenset[str] = frozenset()
    """What ends a stream of it: `[DONE]`, or names of events. Without one of them it was cut off."""

    goes_on: bool = False
    """It may go on from a response that a replica keeps."""

    @property
    def makes_text(self) -> bool:
        """A model writes the answer; it may be wanted as events."""
        return self.kind in (Kind.CHAT, Kind.COMPLETION, Kind.EVENTS)

    @property
    def can_resume(self) -> bool:
        """An answer that broke off can be gone on with by another replica."""
        return self.kind in (Kind.CHAT, Kind.COMPLETION)


RESPONSES: Final = "/v1/responses"
_DONE: Final = frozenset({"[DONE]"})
_STOPS: Final = frozenset({"message_stop"})
_STATES: Final = frozenset({"response.completed", "response.failed", "response.incomplete"})
_EMBEDS, _SCORES = frozenset({Capability.EMBEDDINGS}), frozenset({Capability.SCORE})

ENDPOINTS: Final = {
    endpoint.path: endpoint
    for endpoint in (
        Endpoint(path="/v1/chat/completions", kind=Kind.CHAT, ends=_DONE),
        Endpoint(path="/v1/completions", kind=Kind.COMPLETION, ends=_DONE),
        Endpoint(path=RESPONSES, kind=Kind.EVENTS, ends=_STATES, goes_on=True),
        Endpoint(path="/v1/messages", kind=Kind.EVENTS, ends=_STOPS),
        Endpoint(path="/v1/embeddings", kind=Kind.VECTORS, needs=_EMBEDS),
        Endpoint(path="/v1/rerank", kind=Kind.VECTORS, needs=_SCORES),
        Endpoint(path="/v2/rerank", kind=Kind.VECTORS, needs=_SCORES),
        Endpoint(path="/rerank", kind=Kind.VECTORS, needs=_SCORES),
        Endpoint(path="/v1/score", kind=Kind.VECTORS, needs=_SCORES),
        Endpoint(path="/score", kind=Kind.VECTORS, needs=_SCORES),
        Endpoint(path="/v1/messages/count_tokens", kind=Kind.TEXT),
        Endpoint(path="/v1/chat/completions/input_tokens", kind=Kind.TEXT),
        Endpoint(path="/v1/responses/input_tokens", kind=Kind.TEXT, goes_on=True),
        Endpoint(path="/tokenize", kind=Kind.TEXT),
        Endpoint(path="/detokenize", kind=Kind.TEXT),
        Endpoint(path="/apply-template", kind=Kind.TEXT),
    )
}
