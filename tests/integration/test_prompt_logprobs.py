"""Log-probabilities of prompts: complete, and bitwise the same however the prompt is computed."""

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine_run import make_request
from tests.support.real_engine import RealEngine, Said
from tests.support.tiny_gemma import make_tiny_gemma
from tests.support.tiny_models import make_tiny_llama

from headrace.core.request import Request

VOCAB = 333
LENGTH = 150


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        "llama": make_tiny_llama(root / "llama", vocab_size=VOCAB, max_context=512),
        "windows": make_tiny_gemma(root / "windows"),
    }


@pytest.fixture(scope="module", params=["llama", "windows"])
def model(request: pytest.FixtureRequest, models: Mapping[str, Path]) -> Path:
    return models[request.param]


def scored(name: str = "scored", *, n: int = 1, max_tokens: int = 3, count: int = 3) -> Request:
    rng = random.Random(8)
    prompt = [rng.randrange(3, VOCAB) for _ in range(LENGTH)]
    return make_request(
        name, prompt, n=n, max_tokens=max_tokens, seed=4, logprobs=2, prompt_logprobs=count
    )


def company() -> list[Request]:
    return [
        make_request(f"other {i}", list(range(3, 20 + i)), max_tokens=40, seed=i) for i in range(5)
    ]


@pytest.fixture(scope="module")
def alone(model: Path) -> Iterator[Said]:
    with RealEngine(model, max_num_batched_tokens=256) as engine:
        yield engine.run([scored()])["scored", 0]


def test_every_position_but_the_first_is_reported(alone: Said) -> None:
    prompt = scored().prompt[0].token_ids
    assert [entry.token_id for entry in alone.prompt_logprobs] == prompt[1:]
    for entry in alone.prompt_logprobs:
        best = [logprob for _, logprob in entry.top]
        assert len(best) == 3
        assert best == sorted(best, reverse=True)
        # A token that is among the best has their number, to the last bit.
        assert dict(entry.top).get(entry.token_id, entry.logprob) == entry.logprob
        assert (entry.rank <= 3) == (entry.token_id in dict(entry.top))


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 8},
        {"max_num_batched_tokens": 17},
        {"max_num_batched_tokens": 48, "max_uncommitted_plans": 2, "threads": 2},
        {"max_num_batched_tokens": 64, "chunked_prefill": False},
    ],
)
def test_chunks_and_company_change_nothing(model: Path, alone: Said, options: Any) -> None:
    with RealEngine(model, **options) as engine:
        found = engine.run([*company(), scored(), *company_of_scored()])
        assert found["scored", 0] == alone


def company_of_scored() -> list[Request]:
    return [
        make_request(f"beside {i}", list(range(4, 60 + i)), max_tokens=0, prompt_logprobs=i)
        for i in range(4)
    ]


def test_what_is_cached_is_computed_again(model: Path, alone: Said) -> None:
    with RealEngine(model) as engine:
        engine.run([scored("before")])
        found = engine.run([scored()])["scored", 0]
        assert found == alone
        assert found.num_cached == 0
        plain = make_request("plain", scored().prompt[0].token_ids, max_tokens=3, seed=4)
        assert engine.run([plain])["plain", 0].num_cached > 0


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_preemption_changes_nothing(model: Path, alone: Said, prefix_cache: bool) -> None:
    memory = "620KiB" if model.name == "windows" else "160KiB"
    options: dict[str, Any] = {"prefix_cache": prefix_cache, "max_num_batched_tokens": 24}
    with RealEngine(model, kv_memory=memory, **options) as engine:
        engine.add(scored())
        for number in range(14):
            engine.step()
            urgent = list(range(number, number + 14))
            engine.add(make_request(f"u{number}", urgent, max_tokens=40, seed=number, priority=-1))
        found = engine.finish()
        assert engine.stats.preemptions
        assert found["scored", 0] == alone


def test_siblings_share_one_report(model: Path, alone: Said) -> None:
    with RealEngine(model) as engine:
        found = engine.run([scored(n=3)])
        reports = [found["scored", index].prompt_logprobs for index in range(3)]
        assert sorted(map(len, reports)) == [0, 0, LENGTH - 1]
        assert found["scored", 0] == alone


def test_the_next_sibling_goes_on_where_one_was_cancelled(model: Path, alone: Said) -> None:
    with RealEngine(model, max_num_batched_tokens=32) as engine:
        engine.add(scored(n=2))
        engine.step()
        engine.step()
        engine.engine.cancel("scored", 0)
        found = engine.finish()
        together = [*found["scored", 0].prompt_logprobs, *found["scored", 1].prompt_logprobs]
        assert together == alone.prompt_logprobs


def test_a_prompt_says_of_tokens_what_was_said_when_they_were_made(model: Path) -> None:
    prompt = scored().prompt[0].token_ids
    with RealEngine(model) as engine:
        made = engine.run(
            [make_request("made", prompt, max_tokens=20, seed=9, logprobs=5, temperature=0.7)]
        )["made", 0]
        again = make_request("again", prompt + made.token_ids, max_tokens=0, prompt_logprobs=5)
        report = engine.run([again])["again", 0].prompt_logprobs
        assert report[-20:] == made.logprobs


def test_nothing_is_made_where_no_output_is_wanted(model: Path, alone: Said) -> None:
    with RealEngine(model) as engine:
        found = engine.run([scored(max_tokens=0, n=2)])
        for index in range(2):
            assert found["scored", index].token_ids == []
            assert found["scored", index].finish == "length"
        assert found["scored", 0].prompt_logprobs == alone.prompt_logprobs


def test_the_shortest_prompt_has_nothing_to_report(model: Path) -> None:
    with RealEngine(model) as engine:
        said = engine.run([make_request("one", [5], max_tokens=1, prompt_logprobs=2)])["one", 0]
        assert said.prompt_logprobs == []
        assert len(said.token_ids) == 1
