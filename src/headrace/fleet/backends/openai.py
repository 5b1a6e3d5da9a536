"""OpenAI's shape: what most dialects speak. The others that pass bytes on are this with their own probes.

Hosted APIs (`openai`) have neither health nor load to ask for; they are known by how they answer.
"""

from collections.abc import Mapping
from typing import ClassVar
from urllib.parse import urlsplit

from headrace.config.fleet.replicas import Dialect, ReplicaSpec
from headrace.fleet.backends import reading, resuming
from headrace.fleet.backends.refusals import passed_on
from headrace.fleet.backends.values import (
    AnswerReader,
    Continuation,
    Health,
    Incoming,
    Load,
    ModelCard,
    Outgoing,
    Refusal,
    ResumePoint,
)


def base_path(url: str) -> str:
    """The path before /v1, without a slash at its end: empty for most."""
    return urlsplit(url).path.rstrip("/").removesuffix("/v1")


class OpenAIBackend:
    """Any server of OpenAI's shape."""

    dialect: ClassVar[Dialect] = Dialect.OPENAI
    health_path: ClassVar[str | None] = None
    load_path: ClassVar[str | None] = None
    models_path: ClassVar[str | None] = "/v1/models"
    keeps_responses: ClassVar[bool] = False
    """It keeps what /v1/responses made, to be asked for."""
    chat: Continuation = Continuation.NONE
    """How a chat is gone on with."""
    completions: Continuation = Continuation.TEXT
    """How a completion is."""

    def __init__(self, spec: ReplicaSpec) -> None:
        self._base = base_path(spec.url)
        self._headers = {"content-type": "application/json", **self._auth(spec)}
        self._probe_headers = self._auth(spec)

    def _auth(self, spec: ReplicaSpec) -> dict[str, str]:
        return {"authorization": f"Bearer {spec.api_key!s}"} if spec.api_key else {}

    def _probe(self, path: str | None) -> Outgoing | None:
        if path is None:
            return None
        return Outgoing(method="GET", path=self._base + path, headers=self._probe_headers)

    def health_probe(self) -> Outgoing | None:
        return self._probe(self.health_path)

    def read_health(self, status: int, body: bytes) -> Health:
        """Any status below 300 is good."""
        return Health(200 <= status < 300, "" if status < 300 else f"status {status}")

    def load_probe(self) -> Outgoing | None:
        return self._probe(self.load_path)

    def read_load(self, status: int, body: bytes) -> Load:
        """Hosted APIs tell none."""
        return Load()

    def models_probe(self) -> Outgoing | None:
        return self._probe(self.models_path)

    def read_models(self, status: int, body: bytes) -> tuple[ModelCard, ...]:
        """OpenAI's list, with vLLM's `max_model_len` and `parent`, and llama.cpp's `meta.n_ctx`."""
        if status >= 300:
            return ()
        return tuple(
            ModelCard(
                id=card["id"],
                max_context=reading.count(card.get("max_model_len"))
                or reading.count(reading.table(card.get("meta")).get("n_ctx"))
                or None,
                parent=reading.text(card.get("parent")) or None,
            )
            for card in reading.tables(reading.table(reading.decode(body)).get("data"))
            if reading.text(card.get("id"))
        )

    def outgoing(self, call: Incoming) -> Outgoing:
        """The same bytes, to the same path."""
        return Outgoing(path=self._base + call.path, body=call.body, headers=self._headers)

    def stored(self, method: str, path: str, owner: str) -> Outgoing | None:
        """To the same path; whose it is cannot be said."""
        if not self.keeps_responses:
            return None
        return Outgoing(method=method, path=self._base + path, headers=self._headers)

    def reader(self, call: Incoming, headers: Mapping[str, str]) -> AnswerReader | None:
        """None: it is OpenAI-shaped already."""
        return None

    def refusal(self, status: int, headers: Mapping[str, str], body: bytes) -> Refusal:
        """Its own error object, if it has one."""
        return passed_on(status, headers, body)

    def resume(self, call: Incoming, progress: ResumePoint) -> Incoming | None:
        """As the dialect's `chat` and `completions` say."""
        return resuming.resumed(call, progress, chat=self.chat, completions=self.completions)

    def abort(self, request_id: str) -> Outgoing | None:
        """Closing the connection is enough."""
        return None
