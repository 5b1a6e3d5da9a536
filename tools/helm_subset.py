"""Renders our Helm chart without Helm: the part of Go's text/template that its templates keep to.

Actions: `.a.b`, `$`, `$name.a`, texts and numbers; `quote`, `toYaml`, `nindent`, `default`, `eq`, `kindIs "bool"`, `printf`, one behind the
other with `|`; if, else, with, range, end; comments; `{{-` and `-}}`. Anything else is an error, and so is a value that
is not there where it would be written: what is rendered here, Helm renders the same.

Sources: https://pkg.go.dev/text/template (actions, arguments, pipelines), https://helm.sh/docs/chart_template_guide.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

_ACTION = re.compile(r"\{\{(-?)\s*(.*?)\s*(-?)\}\}", re.DOTALL)
_WORD = re.compile(r'\s*("(?:[^"\\]|\\.)*"|\||[^\s|"]+)')
_RANGE = re.compile(r"\$(\w+), \$(\w+) := (.+)")
#: Numbers of values are floats in Helm, and Go writes longer ones with an exponent.
_LARGEST = 1_000_000
_BLOCKS = ("if", "with", "range")


class Node(NamedTuple):
    """A text, a value to be written, or a block."""

    kind: str
    """text, write, if, with or range."""
    code: str
    inside: "Sequence[Node]" = ()
    otherwise: "Sequence[Node]" = ()


def render_chart(chart: Path, values: Mapping[str, Any], namespace: str) -> str:
    """All templates, in the order of their names, as one YAML stream."""
    release = {"Name": values["fleet"], "Namespace": namespace}
    root = {"Values": values, "Release": release}
    parts = []
    for template in sorted((chart / "templates").glob("*.yaml")):
        text = render(template.read_text(), root).strip()
        parts.append(text.removeprefix("---").lstrip("\n"))
    return "".join(f"---\n{part}\n" for part in parts if part)


def render(text: str, root: Mapping[str, Any]) -> str:
    """Raises ValueError for what is not of the subset."""
    nodes, end = _parse(iter(list(_pieces(text))))
    if end:
        raise ValueError(f"'{end}' ends nothing")
    return "".join(_run(nodes, root, {"": root}))


def _pieces(text: str) -> Iterator[tuple[bool, str]]:
    """(it is an action, its content), white space trimmed where a `-` says so."""
    start, trims = 0, False
    for match in _ACTION.finditer(text):
        before = text[start : match.start()]
        before = before.lstrip() if trims else before
        yield False, before.rstrip() if match.group(1) else before
        if not match.group(2).startswith("/*"):
            yield True, match.group(2)
        start, trims = match.end(), bool(match.group(3))
    rest = text[start:]
    if "{{" in rest:
        raise ValueError("an action is not closed")
    yield False, rest.lstrip() if trims else rest


def _parse(pieces: Iterator[tuple[bool, str]]) -> tuple[list[Node], str]:
    """Nodes up to an `end` or `else`, and which of them it was."""
    nodes = []
    for is_action, content in pieces:
        word, _, rest = content.partition(" ")
        if not is_action:
            nodes.append(Node("text", content))
        elif word in _BLOCKS:
            inside, end = _parse(pieces)
            otherwise: list[Node] = []
            if end == "else":
                otherwise, end = _parse(pieces)
            if end != "end":
                raise ValueError(f"'{content}' is not ended")
            nodes.append(Node(word, rest, inside, otherwise))
        elif content in ("end", "else"):
            return nodes, content
        else:
            nodes.append(Node("write", content))
    return nodes, ""


def _run(nodes: Sequence[Node], dot: Any, names: Mapping[str, Any]) -> Iterator[str]:
    for node in nodes:
        if node.kind == "text":
            yield node.code
        elif node.kind == "write":
            yield _written(_pipeline(node.code, dot, names), node.code)
        elif node.kind == "range":
            yield from _run_range(node, dot, names)
        else:
            value = _pipeline(node.code, dot, names)
            inner = value if node.kind == "with" else dot
            yield from (
                _run(node.inside, inner, names) if value else _run(node.otherwise, dot, names)
            )


def _run_range(node: Node, dot: Any, names: Mapping[str, Any]) -> Iterator[str]:
    """Over a map, in the order of its keys."""
    found = _RANGE.fullmatch(node.code)
    if found is None:
        raise ValueError(f"'range {node.code}' must be written `range $a, $b := …`")
    key, name, code = found.groups()
    values = _pipeline(code, dot, names) or {}
    if not isinstance(values, Mapping):
        raise ValueError(f"'{code}' is no map")
    for word in sorted(values):
        yield from _run(node.inside, values[word], {**names, key: word, name: values[word]})


def _pipeline(code: str, dot: Any, names: Mapping[str, Any]) -> Any:
    """Each command gets what the one before gave as its last argument."""
    commands: list[list[str]] = [[]]
    position = 0
    while position < len(code):
        match = _WORD.match(code, position)
        if match is None or any(c in match.group(1)[0] for c in "()"):
            raise ValueError(f"'{code}' is not of the subset")
        position = match.end()
        if match.group(1) == "|":
            commands.append([])
        else:
            commands[-1].append(match.group(1))
    value: Any = None
    for number, words in enumerate(commands):
        value = _command(words, [value] if number else [], dot, names)
    return value


def _command(words: Sequence[str], last: list[Any], dot: Any, names: Mapping[str, Any]) -> Any:
    head, *rest = words
    arguments = [_operand(word, dot, names) for word in rest] + last
    match head, arguments:
        case "quote", [value]:
            return json.dumps(_plain(value), ensure_ascii=False)
        case "toYaml", [value]:
            return yaml.safe_dump(value, default_flow_style=False).rstrip("\n")
        case "nindent", [int(width), str(text)]:
            return "\n" + "\n".join(" " * width + line if line else "" for line in text.split("\n"))
        case "default", [fallback, value]:
            return value or fallback
        case "eq", [one, other]:
            return one == other
        case "kindIs", ["bool", value]:
            return isinstance(value, bool)
        case "printf", [str(form), *values]:
            parts = re.split("%[sv]", form)
            if "%" in "".join(parts) or len(parts) != len(values) + 1:
                raise ValueError(f"'{form}' is not of the subset")
            return "".join(
                part + _plain(value) for part, value in zip(parts, [*values, ""], strict=True)
            )
        case _, []:
            return _operand(head, dot, names)
    raise ValueError(f"'{' '.join(words)}' is not of the subset")


def _operand(word: str, dot: Any, names: Mapping[str, Any]) -> Any:
    if word.startswith('"'):
        return json.loads(word)
    if word.isdecimal():
        return int(word)
    found = re.fullmatch(r"(\$\w*)?((?:\.\w+)*|\.)", word)
    if found is None or not word:
        raise ValueError(f"'{word}' is not of the subset")
    name, path = found.groups()
    value = dot if name is None else names[name[1:]]
    for part in filter(None, path.split(".")):
        if not isinstance(value, Mapping):
            raise ValueError(f"'{word}': there is no {part}")
        value = value.get(part)
    return value


def _written(value: Any, code: str) -> str:
    if value is None or isinstance(value, (Mapping, list)):
        raise ValueError(f"'{code}' is nothing that can be written")
    return _plain(value)


def _plain(value: Any) -> str:
    """As Go's fmt writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None or isinstance(value, (Mapping, list)):
        raise ValueError("a table or nothing cannot be written in a line")
    if isinstance(value, (int, float)) and abs(value) >= _LARGEST:
        raise ValueError(f"{value} must be a text: Helm writes it as a power of ten")
    return str(value)
