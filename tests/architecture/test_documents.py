"""Documents that can be wrong by themselves: paths in them exist, generated ones are current."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.support.patience import PATIENCE

from headrace import __version__

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")], key=str)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
PATH = re.compile(
    r"`((?:src|csrc|tests|docs|examples|benchmarks|tools)/[\w./*-]+|[\w/]+\.(?:py|cc|h))`"
)


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids)
def test_links_lead_somewhere(path: Path) -> None:
    for target in LINK.findall(path.read_text()):
        if "://" not in target and not target.startswith("mailto:"):
            assert (path.parent / target).exists(), f"{target} is not there"


def test_a_reader_of_the_readme_finds_every_document() -> None:
    open_ends, seen = [ROOT / "README.md"], set[Path]()
    while open_ends:
        path = open_ends.pop()
        seen.add(path)
        targets = [(path.parent / target).resolve() for target in LINK.findall(path.read_text())]
        open_ends += [t for t in targets if t.suffix == ".md" and t.exists() and t not in seen]
    documents = (ROOT / "docs").rglob("*.md")
    assert [str(p.relative_to(ROOT)) for p in documents if p not in seen] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids)
def test_paths_in_backticks_exist(path: Path) -> None:
    for target in PATH.findall(path.read_text()):
        places = [ROOT, ROOT / "src" / "headrace"]
        assert any(list(place.glob(target)) for place in places), f"{target} is not there"


def test_every_path_of_the_tree_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    (tree,) = re.findall(r"```text\n(src/headrace/.*?)```", text, re.DOTALL)
    paths = []
    stack: list[str] = []
    for line in tree.splitlines():
        entry = line.split("  ")[0] if not line.startswith(" ") else line.strip().split("  ")[0]
        depth = (len(line) - len(line.lstrip())) // 2
        stack = [*stack[:depth], entry]
        paths.append("".join(stack))
    assert len(paths) > 15
    assert [p for p in paths if not (ROOT / p).exists()] == []


def test_every_package_is_in_the_tree() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    packages = [p.parent.name for p in (ROOT / "src/headrace").glob("*/__init__.py")]
    assert [name for name in packages if f"{name}/" not in text] == []


@pytest.mark.parametrize("tool", ["reference.py", "manifests.py", "monitoring.py", "protos.py"])
def test_what_is_generated_is_current(tool: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / tool), "--check"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text()


def test_decisions_are_numbered_without_a_gap() -> None:
    numbers = [int(p.name[:4]) for p in sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= 8


def test_make_help_lists_every_target() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = set(re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)[0].split())
    described = set(re.findall(r"^([a-z-]+):.*## ", text, re.MULTILINE))
    assert phony == described
