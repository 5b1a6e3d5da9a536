"""The example of the beam search guide runs as it is printed."""

import json
import re
from pathlib import Path

import httpx
from tests.support.patience import PATIENCE

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "beam-search.md").read_text()


def test_the_example_runs(server: str) -> None:
    path, body = re.search(r"8000(/v1/\S+) --json '(.*?)'", GUIDE, re.DOTALL).groups()
    response = httpx.post(f"{server}{path}", json=json.loads(body), timeout=PATIENCE)
    assert response.status_code == 200, response.text
    choices = response.json()["choices"]
    assert len({choice["text"] for choice in choices}) == 2
    worth = [
        sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["tokens"]) ** 0.8 for c in choices
    ]
    assert worth == sorted(worth, reverse=True)
