"""The page's files: all of them by name, none with anything inline, none from elsewhere."""

import re
from pathlib import Path

import pytest

from headrace.fleet.dashboard import files
from headrace.web.endpoint import Access

FOLDER = Path(files.__file__).parent / "static"
SCRIPTS = sorted(FOLDER.rglob("*.js"))


def test_every_file_is_named_and_open() -> None:
    there = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file()}
    assert there == set(files.NAMES)
    endpoints = files.file_endpoints()
    assert {e.operation.access for e in endpoints} == {Access.OPEN}
    assert {e.path for e in endpoints} == {
        "/dashboard", "/dashboard/", *(f"/dashboard/{name}" for name in there)
    }  # fmt: skip


def test_the_page_has_nothing_inline_and_nothing_from_elsewhere() -> None:
    page = (FOLDER / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert re.findall(r"\son\w+=|\sstyle=|<style", page) == []
    for path in FOLDER.rglob("*"):
        if path.is_file():
            outside = re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"']*", path.read_text())
            assert [url for url in outside if "www.w3.org" not in url] == [], path.name


def test_the_policy_lets_no_text_become_markup() -> None:
    policy = files.HEADERS["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "require-trusted-types-for 'script'" in policy


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_small_and_never_write_markup(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", text)


def luminance(colour: str) -> float:
    if len(colour) == 4:
        colour = "#" + "".join(2 * digit for digit in colour[1:])
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("front", "back"),
    [
        ("text", "bg"), ("text", "surface"), ("text", "sunken"), ("muted", "surface"), ("muted", "bg"),
        ("muted", "sunken"), ("accent", "surface"), ("accent", "accent-weak"), ("on-accent", "accent"),
        ("ok", "ok-weak"), ("warn", "warn-weak"), ("bad", "bad-weak"), ("idle", "idle-weak"),
        ("warn", "surface"), ("bad", "surface"),
    ],
)  # fmt: skip
def test_text_can_be_read(scheme: int, front: str, back: str) -> None:
    """WCAG 2.2, 1.4.3: a contrast of 4.5 at least."""
    blocks = re.findall(r":root \{(.*?)\}", (FOLDER / "style/base.css").read_text(), re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6})", blocks[scheme]))
    lights = sorted((luminance(colours[front]), luminance(colours[back])))
    assert (lights[1] + 0.05) / (lights[0] + 0.05) >= 4.5
