"""Field docstrings, read from the source: the one text behind `--help` and the reference pages.

Python keeps no docstring of an attribute, so the module is parsed. Only help and docs pay for it.
"""

import ast
import inspect
import textwrap
from enum import Enum
from pathlib import Path
from types import ModuleType

from msgspec import Struct

from headrace.config.fields import ConfigField


def summary(owner: type) -> str:
    """The first line of a class docstring."""
    return (owner.__doc__ or "").strip().partition("\n")[0]


def field_docs(owner: type[Struct] | type[Enum]) -> dict[str, str]:
    """The text under each attribute of a class, on one line; {} where the source is not at hand."""
    module = inspect.getmodule(owner)
    tree = _parse(module) if module is not None else None
    if tree is None:
        return {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == owner.__name__:
            return _attributes(node)
    return {}


def text(field: ConfigField) -> str:
    """The docstring of one field."""
    return field_docs(field.owner).get(field.attribute, "")


def _parse(module: ModuleType) -> ast.Module | None:
    try:
        return ast.parse(Path(inspect.getfile(module)).read_text(encoding="utf-8"))
    except (OSError, TypeError):
        return None


def _attributes(node: ast.ClassDef) -> dict[str, str]:
    found = {}
    for statement, following in zip(node.body, node.body[1:], strict=False):
        match statement, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str() as doc)),
            ):
                found[name] = " ".join(textwrap.dedent(doc).split())
    return found
