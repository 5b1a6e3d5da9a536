"""The configuration as a flat list of fields: one description for files, environment, flags and docs."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Literal, get_args, get_origin

import msgspec
from msgspec import Struct
from msgspec import inspect as types


class Kind(StrEnum):
    """How a field is written on a command line."""

    FLAG = "flag"
    """true or false."""
    INTEGER = "integer"
    NUMBER = "number"
    TEXT = "text"
    LIST = "list"
    """Several texts or numbers."""
    TREE = "tree"
    """Tables and lists of tables: in a file only."""


class ConfigField(Struct, frozen=True, kw_only=True):
    """One setting, wherever it is set from."""

    path: str
    """Dotted path in the file, such as engine.scheduler.max_num_seqs."""
    name: str
    """The words of its flag and variable: the last part of the path, or all if that is ambiguous."""
    owner: type[Struct]
    """The struct that declares it."""
    type: Any
    default: Any
    kind: Kind
    choices: tuple[str, ...] = ()
    unit: str | None = None
    """"bytes" or "seconds": text may then carry a unit, such as 16MiB or 50ms."""
    is_optional: bool = False
    expected: str = ""
    """What a value must be, as the end of a sentence."""

    @property
    def flag(self) -> str:
        """Its command-line flag."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return "HEADRACE_" + self.name.upper()

    @property
    def attribute(self) -> str:
        """Its name in the struct that declares it."""
        return self.path.rpartition(".")[2]


def describe(root: type[Struct]) -> tuple[ConfigField, ...]:
    """Every field of a nested config, in the order of declaration."""
    found = list(_walk(root, ""))
    last_parts = [path.rpartition(".")[2] for path, _, _ in found]
    described = []
    for (path, owner, field), last in zip(found, last_parts, strict=True):
        name = last if last_parts.count(last) == 1 else path.replace(".", "_")
        described.append(_describe(path, name, owner, field))
    return tuple(described)


def sections(root: type[Struct]) -> dict[str, type[Struct]]:
    """The dotted path of each table of the file, and the struct it fills; "" is the root."""
    found: dict[str, type[Struct]] = {"": root}
    for field in msgspec.structs.fields(root):
        if _is_section(field.type):
            for inner, owner in sections(field.type).items():
                found[_join(field.name, inner)] = owner
    return found


def _walk(
    owner: type[Struct], prefix: str
) -> Iterator[tuple[str, type[Struct], msgspec.structs.FieldInfo]]:
    for field in msgspec.structs.fields(owner):
        path = _join(prefix, field.name)
        if _is_section(field.type):
            yield from _walk(field.type, path)
        else:
            yield path, owner, field


def _join(left: str, right: str) -> str:
    return f"{left}.{right}" if left and right else left or right


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Struct)


def _describe(
    path: str, name: str, owner: type[Struct], field: msgspec.structs.FieldInfo
) -> ConfigField:
    info, extra = _unwrap(types.type_info(field.type))
    members: tuple[types.Type, ...] = info.types if isinstance(info, types.UnionType) else (info,)
    is_optional = any(isinstance(member, types.NoneType) for member in members)
    (main, extra_inside), *others = (
        _unwrap(member) for member in members if not isinstance(member, types.NoneType)
    )
    default = field.default if field.default is not msgspec.NODEFAULT else None
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    unit = (extra | extra_inside).get("unit")
    choices = _literals(field.type) or _members(main)
    expected = (extra | extra_inside).get("expected") or _expected(main, unit, choices)
    return ConfigField(
        path=path,
        name=name,
        owner=owner,
        type=field.type,
        default=default,
        kind=Kind.TREE if others else _kind(main),
        choices=choices,
        unit=unit,
        is_optional=is_optional,
        expected=expected,
    )


def _unwrap(info: types.Type) -> tuple[types.Type, dict[str, Any]]:
    if isinstance(info, types.Metadata):
        inner, extra = _unwrap(info.type)
        return inner, (info.extra or {}) | extra
    return info, {}


def _kind(info: types.Type) -> Kind:
    if isinstance(info, types.BoolType):
        return Kind.FLAG
    if isinstance(info, types.IntType):
        return Kind.INTEGER
    if isinstance(info, types.FloatType):
        return Kind.NUMBER
    if isinstance(info, types.LiteralType):
        return Kind.INTEGER if all(isinstance(value, int) for value in info.values) else Kind.TEXT
    if isinstance(info, types.StrType | types.EnumType | types.CustomType):
        return Kind.TEXT
    if isinstance(info, types.VarTupleType) and _is_plain(_unwrap(info.item_type)[0]):
        return Kind.LIST
    return Kind.TREE


def _is_plain(info: types.Type) -> bool:
    return isinstance(info, types.StrType | types.IntType | types.FloatType)


def _literals(annotation: Any) -> tuple[str, ...]:
    """The choices of a Literal in the order of declaration (msgspec sorts them)."""
    if get_origin(annotation) is Literal:
        return tuple(str(value) for value in get_args(annotation))
    found = [_literals(inner) for inner in get_args(annotation) if get_origin(inner)]
    return next((choices for choices in found if choices), ())


def _members(info: types.Type) -> tuple[str, ...]:
    if isinstance(info, types.EnumType):
        return tuple(str(member.value) for member in info.cls)
    return ()


def _expected(info: types.Type, unit: str | None, choices: tuple[str, ...] = ()) -> str:
    if choices:
        return "one of " + ", ".join(choices)
    if isinstance(info, types.BoolType):
        return "true or false"
    if isinstance(info, types.IntType | types.FloatType):
        noun = "a whole number" if isinstance(info, types.IntType) else "a number"
        return f"{noun}{f' of {unit}' if unit else ''}{_bounds(info)}"
    if isinstance(info, types.VarTupleType) and _kind(info) is Kind.LIST:
        return f"a list, each item {_expected(_unwrap(info.item_type)[0], unit)}"
    return "a text" if isinstance(info, types.StrType | types.CustomType) else "a table"


def _bounds(info: types.IntType | types.FloatType) -> str:
    if info.ge is not None and info.le is not None:
        return f" from {info.ge:g} to {info.le:g}"
    lower = f" of at least {info.ge:g}" if info.ge is not None else ""
    lower = f" above {info.gt:g}" if info.gt is not None else lower
    upper = f" of at most {info.le:g}" if info.le is not None else ""
    upper = f" below {info.lt:g}" if info.lt is not None else upper
    return " and".join(part for part in (lower, upper) if part)
