"""`fleet.yaml` → FleetConfig, or one sentence that says where the fault is.

Texts may hold `${NAME}`, or `${NAME:-default}`: variables of the environment, so that keys need not be in the file.
Sizes and durations may carry units, as everywhere: 16MiB, 50ms.
"""

import difflib
import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from headrace.config import env
from headrace.config.faults import fault_of, missing_field, place_of
from headrace.config.fleet.faults import located
from headrace.config.fleet.lines import line_of
from headrace.config.fleet.replicas import ReplicaSpec
from headrace.config.fleet.root import FleetConfig
from headrace.config.secret import Secret
from headrace.config.units import parse_duration, parse_size
from headrace.core.errors import ConfigError

MAX_FILE_BYTES = 8 * 1024 * 1024
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")

T = TypeVar("T")


def read_fleet(file: Path) -> FleetConfig:
    """Raises ConfigError."""
    content = _content(file)
    tree = _parse(content, file)
    if tree is None:
        raise ConfigError(
            f"The file {file} is empty: it must name replicas, or where they are found."
        )
    return _convert(tree, FleetConfig, file, content)


def read_replicas(file: Path) -> tuple[ReplicaSpec, ...]:
    """A file with nothing but a list of replicas, or a table with one called `replicas`. Raises ConfigError."""
    content = _content(file)
    tree, at = _parse(content, file), ""
    if isinstance(tree, Mapping):
        tree, at = tree.get("replicas"), "replicas"
    elif tree is None:  # half written, more likely than meant
        raise ConfigError(f"The file {file} is empty; write [] where there are no replicas.")
    return _convert(tree or [], tuple[ReplicaSpec, ...], file, content, at)


def _content(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"The file {file} cannot be read: {error.strerror}.") from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"The file {file} has more than {MAX_FILE_BYTES} bytes.")
    return content


def _parse(content: bytes, file: Path) -> Any:
    # Only a gateway needs its parser.
    import yaml

    try:
        return yaml.load(content, Loader=_strict(yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise ConfigError(f"The file {file} is not YAML: {error.problem}{where}.") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        what = " ".join(str(error).split())
        raise ConfigError(f"The file {file} is not YAML: {what}.") from None


def _strict(loader: Any) -> Any:
    """A loader that refuses a key that is there twice: the last one would win without a word."""
    import yaml

    class Strict(loader):  # type: ignore[misc]
        """One file's."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _ in node.value:
                if key.tag != "tag:yaml.org,2002:merge":
                    name = self.construct_object(key, deep=True)
                    if name in seen:
                        raise yaml.constructor.ConstructorError(
                            None, None, f"'{name}' is there twice", key.start_mark
                        )
                    seen.add(name)
            return super().construct_mapping(node, deep=deep)

    return Strict


def _convert(tree: Any, kind: type[T], file: Path, content: bytes, at: str = "") -> T:
    """`tree` is what stands `at` a place of the file."""

    def fault(path: str, what: str) -> ConfigError:
        place = f"{at}{path}" if path.startswith("[") else ".".join(filter(None, (at, path)))
        line = line_of(content, place)
        where = f"{file}" if line is None else f"{file}, line {line}"
        named = f"'{place}' in {where}" if place else where
        return ConfigError(f"{named}: {what.rstrip('.')}.")

    prepared: Any = None
    try:
        prepared = _prepared(tree if tree is not None else {}, kind)
        return msgspec.convert(prepared, kind, dec_hook=construct)
    except msgspec.ValidationError as error:
        what, way = place_of(str(error))
        path = (way or "").removeprefix("$").removeprefix(".").replace("[...]", "")
        missing = missing_field(what)
        if missing is not None:
            raise fault(f"{path}.{missing}".lstrip("."), "it is missing") from None
        raise fault(path, fault_of(what).replace("an object", "a table")) from None
    except _ValueError as error:
        raise fault("".join(error.path).lstrip("."), error.what) from None
    except ConfigError as error:
        path, found = located(prepared, kind, construct) or ("", error)
        raise (
            fault(path.lstrip("."), str(found)) if path else ConfigError(f"{file}: {found}")
        ) from None


class _ValueError(Exception):
    """A value that cannot be read, with the way to it from the outside in."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.path: list[str] = []


def _prepared(value: Any, kind: Any, unit: str | None = None) -> Any:
    """The tree with variables filled in and units read, where the type has a unit."""
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *marks = get_args(kind)
        for mark in marks:
            if isinstance(mark, Meta) and mark.extra:
                unit = mark.extra.get("unit", unit)
        return _prepared(value, inner, unit)
    if origin in (Union, UnionType):
        inner = [k for k in get_args(kind) if k is not type(None)]
        return _prepared(value, inner[0], unit) if len(inner) == 1 else _filled(value)
    if isinstance(value, bool):
        return _word(value, kind)
    if isinstance(value, str):
        filled = _filled(value)
        if isinstance(kind, type) and issubclass(kind, Enum):
            _check_member(filled, kind)
        return _with_unit(filled, unit)
    if isinstance(value, list):
        item = next(iter(get_args(kind)), Any)
        return [_entry(f"[{index}]", entry, item) for index, entry in enumerate(value)]
    if isinstance(value, dict):
        return _prepared_table(value, kind)
    return value


def _prepared_table(value: dict[Any, Any], kind: Any) -> dict[Any, Any]:
    if isinstance(kind, type) and issubclass(kind, Struct):
        types = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
        if kind.__struct_config__.forbid_unknown_fields:
            _check_known(value, list(types))
        return {key: _entry(f".{key}", entry, types.get(key, Any)) for key, entry in value.items()}
    item = get_args(kind)[-1] if get_args(kind) else Any
    return {key: _entry(f".{key}", entry, item) for key, entry in value.items()}


def _check_known(table: dict[Any, Any], names: list[str]) -> None:
    for key in table:
        if key not in names:
            near = difflib.get_close_matches(str(key), names, n=1)
            hint = f"the nearest is '{near[0]}'." if near else f"there are {', '.join(names)}."
            error = _ValueError(f"there is no such setting; {hint}")
            error.path.append(f".{key}")
            raise error


def _entry(step: str, value: Any, kind: Any) -> Any:
    """`step` is how the entry is written behind the way to its table: .key or [index]."""
    try:
        return _prepared(value, kind)
    except _ValueError as error:
        error.path.insert(0, step)
        raise


def _filled(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return _VARIABLE.sub(_variable, value)


def _variable(match: re.Match[str]) -> str:
    text = env.get(match[1])
    if text is not None:
        return text
    if match[2] is not None:
        return match[2]
    raise _ValueError(f"the variable {match[1]} is not set.")


def _word(value: bool, kind: Any) -> bool | str:
    """YAML takes a bare on or off for true or false, also where they are words of a setting."""
    word = "on" if value else "off"
    is_word = isinstance(kind, type) and issubclass(kind, Enum) and word in {m.value for m in kind}
    return word if is_word else value


def _check_member(text: str, kind: type[Enum]) -> None:
    names = [str(member.value) for member in kind]
    if text not in names:
        raise _ValueError(f"'{text}' is none of {', '.join(names)}.")


def _with_unit(text: str, unit: str | None) -> Any:
    try:
        if unit == "seconds":
            return parse_duration(text)
        if unit == "bytes":
            return parse_size(text)
    except ValueError as error:
        raise _ValueError(str(error).rstrip(".") + ".") from None
    return text


def construct(wanted: type, value: Any) -> Any:
    """Types that msgspec does not know are made from text. Raises ValueError."""
    if issubclass(wanted, Secret | Enum) and isinstance(value, str):
        return wanted(value)
    raise ValueError("not a text")
