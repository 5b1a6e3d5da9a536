"""The guide to sampling: its example runs as it is printed, and no field of the engine's is missing."""

import json
import re
from pathlib import Path

import httpx
from tests.support.patience import PATIENCE

from headrace.api.aliases import ALIASES
from headrace.api.fields import GenerationFields
from headrace.core.sampling import SamplingParams

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "sampling.md").read_text()


def test_the_example_runs_and_repeats_itself(server: str) -> None:
    path, body = re.search(r"8000(/v1/\S+) --json '(.*?)'", GUIDE, re.DOTALL).groups()
    texts = []
    for _ in range(2):
        response = httpx.post(f"{server}{path}", json=json.loads(body), timeout=PATIENCE)
        assert response.status_code == 200, response.text
        assert "x-headrace-ignored-fields" not in response.headers
        texts.append(response.json()["choices"][0]["text"])
    assert texts[0] == texts[1]
    assert "\n" not in texts[0]


def test_a_pattern_ends_whole_and_streamed_answers_alike(server: str) -> None:
    ask = {"prompt": "The colours of the rainbow are", "temperature": 0, "max_tokens": 24}
    url = f"{server}/v1/completions"
    text = httpx.post(url, json=ask, timeout=PATIENCE).json()["choices"][0]["text"]
    for include in (False, True):
        wish = {"stop_regex": "[a-z]+ [a-z]{3}", "include_stop_str_in_output": include}
        whole = httpx.post(url, json=ask | wish, timeout=PATIENCE).json()["choices"][0]
        assert (whole["finish_reason"], whole["stop_reason"]) == ("stop", wish["stop_regex"])
        found = re.search("[a-z]+ [a-z]{3}", text)
        assert found is not None
        assert whole["text"] == text[: found.end() if include else found.start()]
        streamed = httpx.post(url, json=ask | wish | {"stream": True}, timeout=PATIENCE).text
        events = [json.loads(x) for x in re.findall(r"^data: (\{.*)$", streamed, re.MULTILINE)]
        pieces = [choice["text"] for event in events for choice in event["choices"]]
        assert "".join(pieces) == whole["text"]


def test_every_field_and_alias_has_its_row() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", GUIDE, re.MULTILINE))
    # A budget for reasoning has a guide of its own; the fields of DRY are told one by one.
    assert {*SamplingParams.__struct_fields__} - {"thinking", "dry"} <= rows
    assert {name for name in GenerationFields.__struct_fields__ if name.startswith("dry_")} <= rows
    for names in ALIASES.values():
        for alias, field in names.items():
            row = re.search(rf"^\| `{field}` \|.*$", GUIDE, re.MULTILINE)
            assert row is not None
            assert f"`{alias}`" in row[0]
