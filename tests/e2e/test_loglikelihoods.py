"""Log-probabilities as lm-eval reads them, against llama.cpp's of the same weights: a wrong choice is the model's."""

import json
from pathlib import Path

import httpx
import pytest
from tests.support.llama_server import llama_server
from tests.support.patience import PATIENCE

from headrace.cli.local_server import local_server
from headrace.modeling.weights.sources import resolve
from headrace.preprocess.tokenizer import load_tokenizer

FACTS = Path(__file__).parents[1] / "suites" / "tasks" / "facts.jsonl"
ITEMS = [json.loads(line) for line in FACTS.read_text().splitlines()]
#: Those that the model gets wrong in `docs/results/suites.md`.
WRONG = ("A baby dog is called a", "The colour of grass is", "The day after Monday is")

#: Weights are of 4 bits, and both round activations to 8 in their own way: 0.47 was seen for a rare token.
TOLERANCE = 0.7


@pytest.mark.timeout(180)
def test_facts_are_as_likely_as_llama_cpp_says() -> None:
    pytest.importorskip("xllamacpp")
    model = resolve("smollm2-135m", progress=False)
    tokenizer = load_tokenizer(model)
    items = [item for item in ITEMS if item["question"] in WRONG]
    assert len(items) == len(WRONG)
    with (
        local_server(["smollm2-135m", "--max-context", "512"], ready_timeout=PATIENCE) as server,
        llama_server(model) as peer,
    ):
        for item in items:
            sums: list[tuple[float, float]] = []
            for choice in item["choices"]:
                context = tokenizer.encode(item["question"], add_special=False)
                ids = tokenizer.encode(f"{item['question']} {choice}", add_special=False)
                body = {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 1}
                answer = httpx.post(
                    f"{server.url}/v1/completions", json=body, timeout=PATIENCE
                ).json()
                ours = answer["choices"][0]["logprobs"]["token_logprobs"][len(context) :]
                theirs = [
                    logprob_of(peer, ids[:end], ids[end]) for end in range(len(context), len(ids))
                ]
                sums.append((sum(ours), sum(theirs)))
                assert ours == pytest.approx(theirs, abs=TOLERANCE), (item["question"], choice)
            best_ours, best_theirs = (
                max(range(4), key=[s[i] for s in sums].__getitem__) for i in (0, 1)
            )
            assert best_ours == best_theirs, sums


def logprob_of(peer, prompt, token):
    """What llama.cpp gives this token after these."""
    body = {"prompt": prompt, "n_predict": 1, "n_probs": 49_152, "temperature": 0}
    (told,) = peer.post("/completion", body)["completion_probabilities"]
    return next(entry["logprob"] for entry in told["top_logprobs"] if entry["id"] == token)
