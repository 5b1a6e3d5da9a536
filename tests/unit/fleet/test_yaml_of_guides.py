"""Every YAML block of the guides is a fleet file that the gateway takes."""

import re
from pathlib import Path

import pytest
from tests.support.fake_clock import FakeClock

from headrace.config.fleet.read import read_fleet
from headrace.fleet.drivers.build import check_pools
from headrace.fleet.gateway.accounts.directory import Directory

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)
NAMES = ("keys-and-budgets.md", "fairness.md", "autoscaling.md", "up.md", "ray.md", "kubernetes.md")
GUIDES = [ROOT / "docs/guides" / name for name in NAMES]


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_a_guide_s_examples_are_good(guide: Path, tmp_path: Path) -> None:
    blocks = BLOCK.findall(guide.read_text())
    assert blocks
    for number, text in enumerate(blocks):
        file = tmp_path / f"{number}.yaml"
        file.write_text(text)
        config = read_fleet(file)
        check_pools(config.pools)
        Directory(config.accounts, config.flow, FakeClock())
