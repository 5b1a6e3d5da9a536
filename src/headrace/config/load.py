"""File < environment < flags → a config, each value remembering where it came from."""

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from headrace.config import env
from headrace.config.fields import ConfigField, describe, sections
from headrace.config.values import checked, from_text
from headrace.core.errors import ConfigError

PREFIX = "HEADRACE_"
FILE_VARIABLE = "HEADRACE_CONFIG"
#: Variables that are read elsewhere than through a config.
_OTHERS = frozenset(
    {FILE_VARIABLE, "HEADRACE_ADMIN_KEY", "HEADRACE_CACHE", "HEADRACE_ISA", "HEADRACE_STATE"}
)

ConfigT = TypeVar("ConfigT", bound=Struct)


class Loaded(Struct, Generic[ConfigT], frozen=True, kw_only=True):
    """A config and where its values came from."""

    config: ConfigT
    origins: Mapping[str, str]
    """By dotted path: "default", "file x.toml", "environment HEADRACE_PORT", "flag --port"."""
    warnings: tuple[str, ...] = ()
    """Sentences for the operator."""


def load(
    root: type[ConfigT],
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str | bool | Sequence[str]] | None = None,
) -> Loaded[ConfigT]:
    """Build `root` from a TOML file, the environment and flags; later ones win.

    `flags` maps dotted paths to the text on the command line (a list of texts for list fields, a bool
    for switches). `environment` defaults to this process's. Raises ConfigError in one sentence.
    """
    if environment is None:
        environment = env.with_prefix(PREFIX)
    if file is None and FILE_VARIABLE in environment:
        file = Path(environment[FILE_VARIABLE]).expanduser()
    fields = describe(root)
    values: dict[str, Any] = {}
    origins = {field.path: "default" for field in fields}
    layers = [
        _from_file(root, fields, file) if file is not None else (),
        _from_environment(fields, environment),
        _from_flags(fields, flags or {}),
    ]
    for layer in layers:
        for path, value, origin in layer:
            values[path] = value
            origins[path] = origin
    warnings = tuple(
        f"{variable} is no setting and is ignored."
        for variable in sorted(environment)
        if _is_foreign(variable, {field.variable for field in fields})
    )
    return Loaded(config=_build(root, "", values), origins=origins, warnings=warnings)


def build(root: type[ConfigT], **values: Any) -> ConfigT:
    """`root` from keyword arguments by field name (`max_num_seqs=8`), checked; no file, no environment."""
    by_name = {field.name: field for field in describe(root)}
    for name in values:
        if name not in by_name:
            raise ConfigError(f"Unknown setting '{name}'{_hint(name, by_name)}")
    chosen = {
        by_name[name].path: checked(by_name[name], value, f"argument {name}")
        for name, value in values.items()
    }
    return _build(root, "", chosen)


def _from_file(
    root: type[Struct], fields: Sequence[ConfigField], file: Path
) -> Iterator[tuple[str, Any, str]]:
    # Most starts have no file, and do not wait for its parser.
    import tomllib

    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"The config file {file} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"The config file {file} is not TOML: {error}.") from None
    by_path = {field.path: field for field in fields}
    tables = sections(root)
    for path, value in _leaves(tree, tables):
        if path in tables:
            raise ConfigError(f"'{path}' in {file} must be a table, written [{path}].")
        if path not in by_path:
            hint = _file_hint(path, by_path, tables)
            raise ConfigError(f"Unknown key '{path}' in {file}{hint}")
        yield path, checked(by_path[path], value, f"file {file}"), f"file {file}"


def _leaves(
    tree: Mapping[str, Any], tables: Mapping[str, object], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        path = f"{prefix}.{key}" if prefix else key
        if path in tables and isinstance(value, dict):
            yield from _leaves(value, tables, path)
        else:
            yield path, value


def _from_environment(
    fields: Sequence[ConfigField], environment: Mapping[str, str]
) -> Iterator[tuple[str, Any, str]]:
    by_variable = {field.variable: field for field in fields}
    for variable, text in environment.items():
        # Kubernetes sets NAME_PORT=tcp://… and NAME_SERVICE_… for a service called "headrace".
        if text.startswith(("tcp://", "udp://")) and variable.startswith(PREFIX + "PORT"):
            continue
        field = by_variable.get(variable)
        if field is None:
            _refuse_typo(variable, by_variable)
            continue
        origin = f"environment {variable}"
        yield field.path, from_text(field, text, origin), origin


def _is_foreign(variable: str, known: Collection[str]) -> bool:
    """It has our prefix, and nobody here reads it."""
    is_of_kubernetes = variable.startswith((PREFIX + "PORT_", PREFIX + "SERVICE_"))
    return not (is_of_kubernetes or variable in known or variable in _OTHERS)


def _refuse_typo(variable: str, known: Mapping[str, ConfigField]) -> None:
    """Other programs may own variables of our prefix; only what looks like a slip is an error."""
    if variable.startswith((PREFIX + "PORT_", PREFIX + "SERVICE_")):
        return
    close = difflib.get_close_matches(variable, known, n=1, cutoff=0.93)
    if close:
        raise ConfigError(
            f"Unknown environment variable {variable}; did you mean {close[0]}? "
            "(Unset it if it is meant for something else.)"
        )


def _from_flags(
    fields: Sequence[ConfigField], flags: Mapping[str, str | bool | Sequence[str]]
) -> Iterator[tuple[str, Any, str]]:
    by_path = {field.path: field for field in fields}
    for path, value in flags.items():
        field = by_path[path]
        origin = f"flag {field.flag}"
        if isinstance(value, str):
            yield path, from_text(field, value, origin), origin
        else:
            yield path, checked(field, value, origin), origin


def _build(root: type[ConfigT], prefix: str, values: Mapping[str, Any]) -> ConfigT:
    """Only structs on the way to a given value are built; the rest are the declared defaults."""
    arguments: dict[str, Any] = {}
    for field in msgspec.structs.fields(root):
        path = f"{prefix}.{field.name}" if prefix else field.name
        if path in values:
            arguments[field.name] = values[path]
        elif any(given.startswith(path + ".") for given in values):
            arguments[field.name] = _build(field.type, path, values)
    return root(**arguments)


def _hint(word: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else "."


def _file_hint(path: str, known: Mapping[str, ConfigField], tables: Collection[str]) -> str:
    last = path.rpartition(".")[2]
    for right in known:
        if right.rpartition(".")[2] == last:
            return f"; it belongs at '{right}'."
    return _hint(path, {**dict.fromkeys(tables), **known})
