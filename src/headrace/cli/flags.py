"""A command line made from a config struct: one flag a field, help from the field's docstring.

Values are kept as the text that was typed; `config/load.py` reads and checks them, so that a flag, a
variable and a file are refused with the same sentence.
"""

import argparse
import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from msgspec import Struct

from headrace.config.fields import ConfigField, Kind, describe, sections
from headrace.core.errors import ConfigError

# What other engines call the same thing, so that a habit gets an answer.
_ELSEWHERE = {
    "--max-model-len": "--max-context",
    "--context-length": "--max-context",
    "--ctx-size": "--max-context",
    "--gpu-memory-utilization": "--memory-utilization",
    "--mem-fraction-static": "--memory-utilization",
    "--enable-prefix-caching": "--prefix-cache",
    "--no-enable-prefix-caching": "--no-prefix-cache",
    "--enable-chunked-prefill": "--chunked-prefill",
    "--no-enable-chunked-prefill": "--no-chunked-prefill",
    "--kv-cache-dtype": "--kv-dtype",
    "--max-running-requests": "--max-num-seqs",
    "--parallel": "--max-num-seqs",
    "--quantization": "--quantize",
    "--alias": "--served-model-name",
    "--api-key": "--api-keys",
    "--allowed-origins": "--cors-origins",
    "--ssl-cert-file": "--ssl-certfile",
    "--ssl-key-file": "--ssl-keyfile",
}


class Parser(argparse.ArgumentParser):
    """argparse with our error: raised, not printed, and with a suggestion for a misspelt flag."""

    def __init__(self, prog: str, description: str, positionals: str = "") -> None:
        super().__init__(
            prog=prog,
            usage=" ".join(filter(None, (prog, positionals, "[options]"))),
            description=description,
            allow_abbrev=False,
            formatter_class=_HelpFormatter,
            argument_default=argparse.SUPPRESS,
        )

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message[:1].upper()}{message[1:]} (see `{self.prog} --help`).")

    def parse(self, argv: Sequence[str]) -> dict[str, Any]:
        """The arguments that were given, by destination."""
        known, unknown = self.parse_known_args(argv)
        if unknown:
            self.error(f"unknown argument '{unknown[0]}'{self._suggestion(unknown[0])}")
        return vars(known)

    def _suggestion(self, argument: str) -> str:
        flag = argument.partition("=")[0]
        flags = [option for action in self._actions for option in action.option_strings]
        if _ELSEWHERE.get(flag) in flags:
            return f"; here it is {_ELSEWHERE[flag]}"
        close = [name for name in flags if len(flag) > len("--") and name.startswith(flag)]
        close = close or difflib.get_close_matches(flag, flags, n=1)
        return f"; did you mean {close[0]}?" if close and flag.startswith("-") else ""


def add_config(
    parser: Parser, root: type[Struct], argv: Sequence[str], *, has_variables: bool = False
) -> None:
    """Add a flag for every field of `root`. Docstrings are read only if `argv` asks for help."""
    is_documented = "-h" in argv or "--help" in argv
    if is_documented:
        _add_documented(parser, root, has_variables=has_variables)
        return
    for field in describe(root):
        _add_field(parser, field, None)


def _add_documented(parser: Parser, root: type[Struct], *, has_variables: bool = False) -> None:
    """The same flags, grouped by section, each with its help."""
    # Only help needs the parser of Python source; a start does not wait for its import.
    from headrace.config import docs

    tables = sections(root)
    groups = {}
    for field in describe(root):
        section = field.path.rpartition(".")[0]
        if section not in groups:
            summary = docs.summary(tables[section])
            groups[section] = parser.add_argument_group(section or "settings", summary)
        _add_field(groups[section], field, _help(field, docs.text(field), has_variables))


def add_file(parser: Parser) -> None:
    """Add --config FILE."""
    parser.add_argument(
        "--config",
        dest="config_file",
        metavar="FILE",
        type=lambda text: Path(text).expanduser(),
        help="TOML file with settings; variables and flags win over it (HEADRACE_CONFIG)",
    )


def config_values(root: type[Struct], arguments: dict[str, Any]) -> dict[str, Any]:
    """Of the parsed arguments those that are fields of `root`, as `config.load` takes them."""
    values = {}
    for field in describe(root):
        if field.path in arguments:
            value = arguments[field.path]
            values[field.path] = ",".join(value) if isinstance(value, list) else value
    return values


def _add_field(group: Any, field: ConfigField, text: str | None) -> None:
    match field.kind:
        case Kind.TREE:
            return
        case Kind.FLAG:
            group.add_argument(
                field.flag, dest=field.path, action=argparse.BooleanOptionalAction, help=text
            )
        case _:
            group.add_argument(
                field.flag,
                dest=field.path,
                metavar=_metavar(field),
                nargs="+" if field.kind is Kind.LIST else None,
                help=text,
            )


def _metavar(field: ConfigField) -> str:
    if field.choices:
        return "{" + ",".join(field.choices) + "}"
    if field.unit is not None:
        return {"seconds": "SECONDS", "bytes": "BYTES"}[field.unit]
    return {Kind.INTEGER: "N", Kind.NUMBER: "X"}.get(field.kind, field.attribute.upper())


def _help(field: ConfigField, doc: str, has_variables: bool) -> str:
    notes = [shown_default(field)] if shown_default(field) else []
    if has_variables:
        notes.append(field.variable)
    text = doc.rstrip(".")
    return f"{text} ({', '.join(notes)})".replace("%", "%%") if notes else text.replace("%", "%%")


def shown_default(field: ConfigField) -> str:
    """The default in words; empty where there is none to speak of."""
    if field.default is None or field.default in ((), ""):
        return ""
    if isinstance(field.default, bool):
        return "default on" if field.default else "default off"
    if isinstance(field.default, tuple):
        return "default " + ",".join(map(str, field.default))
    return f"default {field.default}"


class _HelpFormatter(argparse.HelpFormatter):
    """Help beside the flag, on a wide enough column, without argparse's own notes on defaults."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=110)
