"""`GET /v1/models` and `/version`."""

from typing import Literal

from msgspec import Struct

from headrace.core.stats import ReplicaState


class ModelCard(Struct, frozen=True, kw_only=True):
    """One name under which a model is served."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "headrace"
    root: str
    """The model behind the name."""
    parent: str | None = None
    """For a LoRA adapter: the name of the model that it changes."""
    max_model_len: int | None
    """Tokens of prompt and answer together (vLLM's name for it); None for a model that was never loaded."""
    capabilities: list[str] = []
    """generate (text that goes on), embed (vectors), score (pairs, by a classification head)."""
    status: ReplicaState = ReplicaState.READY
    """ready, or empty for one that is loaded when it is asked for, or loading, draining, parked."""


class ModelList(Struct, frozen=True, kw_only=True):
    """All names, in the order in which they were configured."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class Version(Struct, frozen=True, kw_only=True):
    """The body of `/version`."""

    version: str


class Health(Struct, frozen=True, kw_only=True):
    """The body of `/livez`, `/readyz` and `/health`."""

    status: Literal["ok", "unready"]
    reason: str | None = None
    """Why it is not ready, in one sentence."""
    state: ReplicaState | None = None
    """Of a replica that was asked whether it is ready: empty, loading, ready, draining, parked."""
