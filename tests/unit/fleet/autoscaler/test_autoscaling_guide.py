"""The guides explain every word that decisions, instances and objectives are told with, and no other."""

import re
from pathlib import Path

import pytest

from headrace.cli.fleet_alerts import SLO_COLUMNS
from headrace.config.fleet.scaling import PolicyKind, ScalingConfig
from headrace.config.fleet.slos import Measure
from headrace.fleet.autoscaler.members import Phase
from headrace.fleet.autoscaler.values import Limit

GUIDES = Path(__file__).parents[4] / "docs/guides"
WORDS = {
    ("autoscaling.md", "`policy`"): list(PolicyKind),
    ("autoscaling.md", "Limited by"): list(Limit),
    ("autoscaling.md", "Phase"): list(Phase),
    ("slos.md", "Measure"): list(Measure),
    ("slos.md", "Column of `fleet slos`"): list(SLO_COLUMNS),
}


def rows(guide: str, heading: str) -> list[str]:
    """Of the one table whose first column has this heading."""
    text = (GUIDES / guide).read_text("utf-8")
    (found,) = re.findall(
        rf"^\| {re.escape(heading)} \|.*\n\|[-:| ]+\n((?:\|.*\n)+)", text, re.MULTILINE
    )
    return found.splitlines()


@pytest.mark.parametrize(("guide", "heading"), WORDS)
def test_tables_have_every_word(guide: str, heading: str) -> None:
    told = [
        word for row in rows(guide, heading) for word in re.findall(r"`(\w+)`", row.split("|")[1])
    ]
    assert sorted(told) == sorted(map(str, WORDS[guide, heading]))


def test_what_changes_a_limit_is_a_setting() -> None:
    known = {
        *ScalingConfig.__struct_fields__,
        "min_replicas",
        "max_replicas",
        "budget",
        "hourly_cost",
    }
    named = {
        word
        for row in rows("autoscaling.md", "Limited by")
        for word in re.findall(r"`(\w+)`", row.split("|")[3])
    }
    assert len(named) > 8
    assert named <= known
