"""The guide to routing names what there is, with the defaults that there are; its examples are good files."""

import re
from pathlib import Path

import msgspec
import pytest

from headrace.config.fleet.models import Cause, ClassifierConfig
from headrace.config.fleet.read import read_fleet
from headrace.config.fleet.routing import RoutingConfig, RoutingPolicy
from headrace.fleet.gateway.models.classify import classify
from headrace.fleet.gateway.routing.choose import choose
from headrace.fleet.gateway.routing.values import Candidate, Query

GUIDE = (Path(__file__).parents[4] / "docs/guides/routing.md").read_text("utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)


def table(heading: str) -> list[list[str]]:
    """Rows of the table whose first column has this heading, in every table that has."""
    rows = []
    for found in re.finditer(rf"^\| {heading} \|.*\n\|[-:| ]+\n((?:\|.*\n)+)", GUIDE, re.MULTILINE):
        rows.append([line.split("|")[1].strip(" `") for line in found[1].splitlines()])
    return rows


def test_tables_have_every_policy_and_cause() -> None:
    policies = table("Policy")
    assert len(policies) == 2
    assert all(sorted(rows) == sorted(RoutingPolicy) for rows in policies)
    assert table("Cause") == [[str(cause) for cause in Cause]]


def test_the_features_have_their_weights() -> None:
    shown = dict(re.findall(r"^\| `(\w+)` \| (-?[\d.]+) \|", GUIDE, re.MULTILINE))
    assert {name: float(weight) for name, weight in shown.items()} == msgspec.structs.asdict(
        ClassifierConfig()
    )


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_are_read(example: str, tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(example, "utf-8")
    read_fleet(file)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(\w+_\w+)`", GUIDE))))
def test_settings_that_are_named_exist(name: str, tmp_path: Path) -> None:
    source = Path(__file__).parents[4] / "src/headrace"
    texts = [path.read_text("utf-8") for path in (source / "config/fleet").glob("*.py")]
    texts.append((source / "observe/catalogue.py").read_text("utf-8"))
    assert any(re.search(rf"\b{name}\b", text) for text in texts)


def test_the_words_of_sticky_are_those_of_the_guide() -> None:
    query = Query(prompt_tokens=1000)
    cold = choose(RoutingConfig(), query, [Candidate(id="a")])
    assert cold.reason == "cold, cached 0.00, first token 1.00 s, 0 requests; 1 of 1 candidates"
    warm = choose(RoutingConfig(), query, [Candidate(id="a", cached_tokens=930, num_requests=12)])
    assert warm.reason == "warm, cached 0.93, first token 0.07 s, 12 requests; 1 of 1 candidates"


def test_complexity_is_shown_as_in_the_guide() -> None:
    shown = str(classify(ClassifierConfig(), {"prompt": "word " * 116 + "? ? ?"}))
    assert re.fullmatch(r"complexity 0\.\d\d \(length 0\.\d\d, steps 0\.\d\d\)", shown)
