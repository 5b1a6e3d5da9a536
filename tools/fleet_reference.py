"""The tables of `fleet.yaml`, from the structs that it is read into: one section a struct."""

from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Any, get_args, get_origin

import msgspec
from msgspec import Struct

from headrace.config import docs
from headrace.config.fleet.root import FleetConfig
from headrace.config.secret import Secret
from headrace.config.units import format_size


def fleet() -> str:
    """Every table, in the order in which they are met."""
    lines = [
        "# fleet.yaml",
        "",
        "What `headrace gateway` reads. An unknown key or a value out of range is refused in one sentence. Texts may hold",
        "`${NAME}` or `${NAME:-default}`, variables of the environment. Sizes and durations may carry a unit (`16MiB`, `50ms`).",
    ]
    for path, kind in _tables(FleetConfig, ""):
        lines += ["", f"## {path or 'The file'}", "", docs.summary(kind), ""]
        texts = docs.field_docs(kind)
        for field in msgspec.structs.fields(kind):
            lines += _setting(field, texts.get(field.name, _inherited(kind, field.name)))
    return "\n".join(lines).rstrip("\n") + "\n"


def _tables(kind: type[Struct], path: str) -> Iterator[tuple[str, type[Struct]]]:
    """Each struct with where it stands, but those that were met before."""
    seen: set[type[Struct]] = set()
    waiting = [(path, kind)]
    while waiting:
        path, kind = waiting.pop(0)
        if kind in seen:
            continue
        seen.add(kind)
        yield path, kind
        for field in msgspec.structs.fields(kind):
            for inner, is_list in _structs(field.type):
                here = f"{path}.{field.name}" if path else field.name
                waiting.append((here + ("[]" if is_list else ""), inner))


def _structs(kind: Any) -> Iterator[tuple[type[Struct], bool]]:
    """Structs inside a type, and whether there may be several."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        yield kind, False
    for inner in get_args(kind):
        for found, is_list in _structs(inner):
            yield found, is_list or get_origin(kind) in (tuple, list)


def _inherited(kind: type[Struct], name: str) -> str:
    for base in kind.__mro__[1:]:
        if issubclass(base, Struct) and base is not Struct:
            text = docs.field_docs(base).get(name)
            if text:
                return text
    return ""


def _setting(field: msgspec.structs.FieldInfo, text: str) -> list[str]:
    default = _default(field)
    shown = f" Default: `{default}`." if default else ""
    if field.required:
        shown = " Required."
    choices = ", ".join(f"`{member.value}`" for member in _members(field.type))
    named = f" One of {choices}." if choices else ""
    if not text and next(_structs(field.type), None) is not None:
        text = "See its table."
    said = f"{text}{named if len(choices) < 400 else ''}{shown}".strip()
    return [f"- **{field.name}**: {said}" if said else f"- **{field.name}**"]


def _members(kind: Any) -> list[Enum]:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return list(kind)
    return [member for inner in get_args(kind) for member in _members(inner)]


def _default(field: msgspec.structs.FieldInfo) -> str:
    value = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    if (
        value is msgspec.NODEFAULT
        or isinstance(value, Struct | Secret)
        or value in (None, "", (), {})
    ):
        return ""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, tuple):
        return ", ".join(str(getattr(item, "value", getattr(item, "name", item))) for item in value)
    if isinstance(value, int) and not isinstance(value, bool) and _unit(field.type) == "bytes":
        return format_size(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unit(kind: Any) -> str | None:
    if get_origin(kind) is Annotated:
        for mark in get_args(kind)[1:]:
            if isinstance(mark, msgspec.Meta) and mark.extra:
                return str(mark.extra.get("unit"))
    return None
