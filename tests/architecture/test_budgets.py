"""Size is a budget: 400 lines a file, 60 a function, 8 parameters outside kernels."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "headrace"
CSRC = Path(__file__).parents[2] / "csrc"
MODULES = sorted(SOURCE.rglob("*.py"))

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60

FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "manager", "managers"}
FORBIDDEN_ENDINGS = ("_legacy", "_v2", "_new", "_old", "_utils", "_helpers")


def name(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= MAX_FUNCTION_LINES, f"{node.name} has {lines} lines"


def test_no_native_file_is_longer_than_500_lines() -> None:
    files = [p for p in CSRC.rglob("*") if p.suffix in (".h", ".cc", ".cpp")]
    assert files
    assert [str(p) for p in files if len(p.read_text().splitlines()) > 500] == []


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_names_say_what_is_inside(path: Path) -> None:
    words = [*path.relative_to(SOURCE).parent.parts, path.stem]
    assert not FORBIDDEN_NAMES & set(words)
    assert not any(word.endswith(FORBIDDEN_ENDINGS) for word in words)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            assert not node.name.endswith(("Manager", "Helper", "Utils")), node.name


def test_every_text_file_ends_with_one_newline() -> None:
    root = SOURCE.parents[1]
    kinds = {".py", ".md", ".toml", ".h", ".cc", ".cpp", ".txt", ".sh", ".yaml", ".yml", ".svg"}
    folders = ["src", "csrc", "tests", "docs", "examples", "benchmarks", "tools", "deploy"]
    files = [p for p in root.iterdir() if p.is_file()]
    files += [p for folder in folders for p in (root / folder).rglob("*") if p.is_file()]
    texts = {p: p.read_bytes() for p in files if p.suffix in kinds or p.name == "Makefile"}
    wrong = [
        str(p.relative_to(root))
        for p, text in texts.items()
        if text and (not text.endswith(b"\n") or text.endswith(b"\n\n"))
    ]
    assert wrong == []
