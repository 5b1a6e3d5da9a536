"""`/control`: models parked, woken, loaded and unloaded while the server runs."""

from typing import Annotated

from msgspec import Meta, Struct

from headrace.core.stats import ReplicaState

#: Names and sources are as long as paths may be.
MAX_NAME_CHARS = 4096
MAX_SECONDS = 86_400.0

ModelName = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS)]
Patience = Annotated[float, Meta(ge=0.0, le=MAX_SECONDS)]


class ControlRequest(Struct, frozen=True, kw_only=True):
    """Which model, and how long its requests may go on."""

    model: ModelName | None = None
    """A name that requests use; needed where there are several models."""
    timeout: Patience | None = None
    """Seconds that running requests get before they are cut short; default the server's `--drain-timeout`."""


class LoadModelRequest(ControlRequest, frozen=True, kw_only=True):
    """What is to be served."""

    model: ModelName | None = None
    """Short name, file, directory or source, as for `headrace serve`; default the model that was served last.
    Where there are several models, the name of one of them."""
    served_model_name: Annotated[tuple[ModelName, ...], Meta(max_length=64)] = ()
    """Names that requests may use; default the short name or the file's stem."""
    settings: dict[str, str | int | float | bool] = {}
    """Settings of the engine that differ from the server's, by name, such as `max_context: 4096`."""
    parked: bool = False
    """Park it as soon as it is loaded."""


class ControlledModel(Struct, frozen=True, kw_only=True):
    """One model as `GET /control` shows it."""

    name: str
    """Empty while there is none."""
    state: ReplicaState
    memory_bytes: int
    """Of its weights, keys and values, when it is not parked; 0 while it is not loaded."""
    num_requests: int
    """Requests that hold it."""


class ControlState(Struct, frozen=True, kw_only=True):
    """The server and its models."""

    state: ReplicaState
    models: tuple[ControlledModel, ...]


class ControlAnswer(Struct, frozen=True, kw_only=True):
    """What became of an order."""

    model: str
    state: ReplicaState
    seconds: float
    """That it took."""


class Sleeping(Struct, frozen=True, kw_only=True):
    """vLLM's answer to `/is_sleeping`."""

    is_sleeping: bool
