"""We say what llama.cpp says, as close to the truth as it is: real models, teacher-forced."""

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from tests.support.fake_clock import FakeClock
from tests.support.patience import PATIENCE

from headrace.modeling.weights.sources import resolve
from headrace.preprocess.templates import ChatTemplates
from headrace.preprocess.tokenizer import load_tokenizer

QUESTIONS = (
    "What is the capital of France?",
    "Name three fruits.",
    "Who wrote Romeo and Juliet?",
    "What is two plus two?",
    "Explain gravity to a child.",
)
CLEAR = 0.5
"""Nats between llama.cpp's two best tokens, beyond which ours must be the same."""
END = list(b"<|im_end|>")
"""llama.cpp reports the token without its text."""


@pytest.fixture(scope="module")
def agreement() -> ModuleType:
    """The measurement is a program beside the other comparisons."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks/compare"))
    try:
        import agreement
    finally:
        sys.path.pop(0)
    return agreement


def test_smollm2_on_a_few_prompts(agreement: ModuleType) -> None:
    path = resolve("smollm2-135m", progress=False)
    said = agreement.continue_all(path, prompts=4, tokens=16, num_probs=500)
    ours = agreement.our_scorer(path, said)
    found = agreement.compare(said, ours)
    assert found.positions == 64
    assert found.decided > 30
    assert found.same_top1_decided == 1.0
    assert found.same_top1 >= 0.9  # 97 % is for the whole set: this one is small
    divergence = agreement.diverge(said, ours, agreement.reference_scorer(path, said))
    assert divergence.kl_ratio <= 1.3
    assert divergence.kl_ours < 0.02


def test_gemma_3_on_a_few_prompts(agreement: ModuleType) -> None:
    path = resolve("gemma-3-270m", progress=False)
    said = agreement.continue_all(path, prompts=6, tokens=16, num_probs=2)
    found = agreement.compare(said, agreement.our_scorer(path, said))
    assert found.decided > 40
    assert found.same_top1_decided == 1.0
    assert found.same_top1 >= 0.9


@pytest.fixture(scope="module")
def all_prompts(agreement: ModuleType) -> Callable[[str], tuple[Any, Any]]:
    """Agreement and divergence of a model on the whole set; minutes, so computed once."""

    @cache
    def measured(model: str) -> tuple[Any, Any]:
        path = resolve(model, progress=False)
        said = agreement.continue_all(path, prompts=32, tokens=32, num_probs=2000)
        ours = agreement.our_scorer(path, said)
        found = agreement.compare(said, ours)
        return found, agreement.diverge(said, ours, agreement.reference_scorer(path, said))

    return measured


@pytest.mark.soak
@pytest.mark.parametrize("model", ["smollm2-135m", "gemma-3-270m"])
def test_all_prompts(all_prompts: Callable[[str], tuple[Any, Any]], model: str) -> None:
    found, divergence = all_prompts(model)
    print(found, divergence)
    assert found.positions == 1024
    assert found.same_top1_decided == 1.0
    assert divergence.kl_ratio <= 1.2


NEAR_TIES = "float32 itself agrees with llama.cpp at 95.9 % here: see docs/results/quality.md"


@pytest.mark.soak
@pytest.mark.parametrize(
    "model",
    [
        "smollm2-135m",
        pytest.param("gemma-3-270m", marks=pytest.mark.xfail(reason=NEAR_TIES, strict=True)),
    ],
)
def test_most_likely_tokens_of_all_prompts(
    all_prompts: Callable[[str], tuple[Any, Any]], model: str
) -> None:
    assert all_prompts(model)[0].same_top1 >= 0.97


def test_chat_answers_up_to_near_ties(agreement: ModuleType, server: str) -> None:
    """The served answer is llama.cpp's, to its end or to the first place where that wavers."""
    path = resolve("smollm2-135m", progress=False)
    tokenizer = load_tokenizer(path, cache=None)
    template = ChatTemplates(tokenizer, None, FakeClock()).find(with_tools=False)
    num_same = 0
    with agreement.llama_server(path) as url:
        for question in QUESTIONS:
            messages = [{"role": "user", "content": question}]
            ids = tokenizer.encode(template.render(messages), add_special=False)
            options = {"max_tokens": 32, "temperature": 0}
            body = {"messages": messages, "logprobs": True, **options}
            choice = httpx.post(
                f"{server}/v1/chat/completions", json=body, timeout=PATIENCE
            ).json()["choices"][0]  # fmt: skip
            theirs = agreement.post(
                f"{url}/completion",
                {"prompt": ids, "n_predict": 32, "temperature": 0, "n_probs": 2},
            )["completion_probabilities"]
            for our, their in zip(choice["logprobs"]["content"], theirs, strict=False):
                if our["bytes"] != (their["bytes"] or END):
                    best, second = (top["logprob"] for top in their["top_logprobs"])
                    assert best - second < CLEAR, (question, our, their)
                    break
                num_same += 1
    assert num_same > 50
