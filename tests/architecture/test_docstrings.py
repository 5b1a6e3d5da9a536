"""Docstrings state contracts: on modules, packages, protocols and public classes, and never an echo."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "headrace"
MODULES = sorted(SOURCE.rglob("*.py"))

Documented = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
# Words that add nothing to a name.
FILLER = {"a", "an", "the", "this", "of", "for", "to", "class", "function", "method", "module"}


def words(text: str) -> set[str]:
    """Lower-case words, with CamelCase and snake_case taken apart and plurals and -s verbs cut."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", text)
    return {part.lower().removesuffix("s") for part in parts} - FILLER


def documented(tree: ast.Module) -> Iterator[tuple[Documented, str]]:
    for node in ast.walk(tree):
        if isinstance(node, Documented) and (text := ast.get_docstring(node)):
            yield node, text


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_docstrings(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "the module says nothing of itself"
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{node.name} says nothing of itself"
    for node, text in documented(tree):
        assert words(text) - words(node.name), f"{node.name}: its docstring repeats its name"


def test_an_echo_is_recognised() -> None:
    def is_echo(source: str) -> bool:
        ((node, text),) = documented(ast.parse(source))
        return not words(text) - words(node.name)

    assert is_echo('class BlockPool:\n    """The block pool."""')
    assert is_echo('def num_blocks():\n    """Num blocks."""')
    assert not is_echo('class BlockPool:\n    """Free blocks in order of eviction."""')
