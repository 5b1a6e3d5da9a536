"""Which models a server has, which of them are loaded when, and how much memory they share."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Any

from msgspec import Meta, Struct, structs

from headrace.config.engine import EngineConfig
from headrace.config.fields import describe
from headrace.config.values import checked, from_text
from headrace.core.errors import ConfigError

#: Models behind one server.
MAX_MODELS = 64


class StartAs(StrEnum):
    """What a server of one model is when it has started."""

    READY = "ready"
    PARKED = "parked"
    """The model is loaded and its KV memory given back, until POST /control/unpark."""
    EMPTY = "empty"
    """Everything is imported, and no model loaded until POST /control/load."""


class ModelEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of several models behind a server."""

    model: str
    """Short name, file, directory or source, as for --model."""
    served_model_name: tuple[str, ...] = ()
    """Names that requests may use; default the short name or the file's stem."""
    keep: bool = False
    """Loaded at the start and never evicted."""
    settings: dict[str, str | int | float | bool] = {}
    """Settings of its engine that differ from the others', by name, such as max_context = 4096."""


class HostingConfig(Struct, frozen=True, kw_only=True):
    """What is loaded when, and how several models share a server."""

    start: StartAs = StartAs.READY
    """ready; parked: loaded, its KV memory given back; or empty: no model yet. The last two are woken by a
    message (control_token)."""
    keep_models: tuple[str, ...] = ()
    """Of several models, those that are loaded at the start and never evicted."""
    models_memory: Annotated[
        str,
        Meta(
            pattern=r"^(auto|[0-9]+(\.[0-9]+)?\s*([kKmMgGtT]([iI]?[bB])?|[bB])?)$",
            extra={"expected": "auto, or a size such as 512MiB or 4GiB"},
        ),
    ] = "auto"
    """Memory for weights, keys and values of several models together, such as 8GiB; those used least recently
    make room. auto: three quarters of what is free at the start."""
    model_load_timeout: Annotated[float, Meta(gt=0.0, extra={"unit": "seconds"})] = 60.0
    """Seconds that a request waits for its model to be loaded; then it is answered 503."""
    spare_engine: bool = True
    """With several models, keep one engine process ready that has no model: loads need not wait for its start."""


class HostedModel(Struct, frozen=True, kw_only=True):
    """A model and how its engine runs."""

    names: tuple[str, ...]
    """Names that requests may use."""
    engine: EngineConfig
    keep: bool


def hosted_models(
    entries: tuple[ModelEntry, ...], engine: EngineConfig, hosting: HostingConfig
) -> tuple[HostedModel, ...]:
    """Several models over the settings that they share. Raises ConfigError in one sentence."""
    if len(entries) > MAX_MODELS:
        raise ConfigError(f"At most {MAX_MODELS} models may be behind one server.")
    if engine.model.served_model_name:
        raise ConfigError("served_model_name is for one model; give each of several its own.")
    if hosting.start is not StartAs.READY:
        raise ConfigError(f"start = {hosting.start} is for one model, and several are given.")
    models = tuple(_hosted(entry, engine) for entry in entries)
    taken: dict[str, str] = {}
    for entry, model in zip(entries, models, strict=True):
        for name in model.names:
            if name in taken:
                raise ConfigError(
                    f"'{taken[name]}' and '{entry.model}' would both be served as '{name}': "
                    "give them names of their own (served_model_name)."
                )
            taken[name] = entry.model
    for name in hosting.keep_models:
        if name not in taken:
            raise ConfigError(f"keep_models: no model is called '{name}'.")
    kept = set(hosting.keep_models)
    return tuple(structs.replace(m, keep=m.keep or not kept.isdisjoint(m.names)) for m in models)


def default_name(source: str) -> str:
    """The name of a model that is given none: its short name, or the stem of its file or repository."""
    place = source.partition("?")[0].rstrip("/")
    scheme, separator, rest = place.partition(":")
    if separator and scheme in ("hf", "pypi"):
        place = rest.partition(":")[2] or rest.partition("==")[0]
    name = PurePosixPath(place).name
    return name.removesuffix(".gguf") or source


def overridden(
    engine: EngineConfig, settings: Mapping[str, str | int | float | bool], origin: str
) -> EngineConfig:
    """`engine` with some settings changed, by the names of their fields. Raises ConfigError."""
    fields = {field.attribute: field for field in describe(EngineConfig)}
    for name, value in settings.items():
        field = fields.get(name.replace("-", "_"))
        if field is None or field.path == "model.model":
            raise ConfigError(f"{origin}: '{name[:60]}' is no setting of an engine.")
        given = (
            from_text(field, value, origin)
            if isinstance(value, str)
            else checked(field, value, origin)
        )
        section, _, attribute = field.path.partition(".")
        changed: dict[str, Any] = {attribute: given}
        part = structs.replace(getattr(engine, section), **changed)
        sections: dict[str, Any] = {section: part}
        engine = structs.replace(engine, **sections)
    return engine


def _hosted(entry: ModelEntry, engine: EngineConfig) -> HostedModel:
    names = entry.served_model_name or (default_name(entry.model),)
    engine = overridden(engine, entry.settings, f"the settings of model '{entry.model}'")
    model = structs.replace(engine.model, model=entry.model, served_model_name=names)
    return HostedModel(names=names, engine=structs.replace(engine, model=model), keep=entry.keep)
