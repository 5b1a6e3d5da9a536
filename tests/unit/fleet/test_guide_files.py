"""Every fleet file that the guides show is one that a gateway takes."""

import re
from pathlib import Path

import pytest

from headrace.config.fleet.read import read_fleet

GUIDES = Path(__file__).parents[3] / "docs" / "guides"
SHOWN = re.compile(r"```yaml\n(.*?)```", re.DOTALL)
#: Their YAML is for other programs.
OTHERS = {"observe.md"}
FILES = [
    pytest.param(text, id=f"{guide.stem}-{number}")
    for guide in sorted(GUIDES.glob("*.md"))
    if guide.name not in OTHERS
    for number, text in enumerate(SHOWN.findall(guide.read_text()))
]


@pytest.mark.parametrize("text", FILES)
def test_a_shown_file_is_good(text, tmp_path):
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    assert read_fleet(file) is not None
