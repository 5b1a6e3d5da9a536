"""The guide to sampling: its example runs as it is printed, and no field of the engine's is missing."""

import json
import re
from pathlib import Path

import httpx

from headrace.api.aliases import ALIASES
from headrace.core.sampling import SamplingParams

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "sampling.md").read_text()


def test_the_example_runs_and_repeats_itself(server: str) -> None:
    path, body = re.search(r"8000(/v1/\S+) --json '(.*?)'", GUIDE, re.DOTALL).groups()
    texts = []
    for _ in range(2):
        response = httpx.post(f"{server}{path}", json=json.loads(body), timeout=60)
        assert response.status_code == 200, response.text
        assert "x-headrace-ignored-fields" not in response.headers
        texts.append(response.json()["choices"][0]["text"])
    assert texts[0] == texts[1]
    assert "\n" not in texts[0]


def test_every_field_and_alias_has_its_row() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", GUIDE, re.MULTILINE))
    # A budget for reasoning has a guide of its own.
    assert {*SamplingParams.__struct_fields__} - {"thinking"} <= rows
    for names in ALIASES.values():
        for alias, field in names.items():
            row = re.search(rf"^\| `{field}` \|.*$", GUIDE, re.MULTILINE)
            assert row is not None
            assert f"`{alias}`" in row[0]
