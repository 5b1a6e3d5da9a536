"""Tokens that a request does not want are never drawn, whatever else is asked for."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.engine_run import make_request
from tests.support.real_engine import RealEngine
from tests.support.tiny_models import make_tiny_llama

VOCAB = 333
PROMPT = list(range(40, 70))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bounds")
    return make_tiny_llama(root / "model", vocab_size=VOCAB, max_context=512)


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[RealEngine]:
    with RealEngine(model) as running:
        yield running


def said(engine: RealEngine, name: str, **params: object) -> list[int]:
    request = make_request(name, PROMPT, max_tokens=60, seed=3, temperature=2.0, **params)
    return engine.run([request])[name, 0].token_ids


def test_only_allowed_tokens_are_drawn(engine: RealEngine) -> None:
    allowed = (3, 31, 32, 63, 64, 332)
    assert set(said(engine, "few", allowed_token_ids=allowed)) <= set(allowed)
    assert set(said(engine, "one", allowed_token_ids=(7,))) == {7}


def test_bad_words_are_never_completed(engine: RealEngine) -> None:
    free = said(engine, "free")
    words = (*((free[i], free[i + 1]) for i in range(0, 40, 5)), (free[3],))
    tokens = said(engine, "bounded", bad_words=words)
    pairs = set(pairwise(tokens))
    assert not pairs & set(words)
    assert free[3] not in tokens
    # The first token of a word is no fault by itself.
    assert tokens[0] == free[0]
    assert tokens[:2] != free[:2]


def test_the_prompt_is_no_part_of_a_bad_word(engine: RealEngine) -> None:
    free = said(engine, "again")
    assert said(engine, "bound", bad_words=((PROMPT[-1], free[0]),)) == free


def test_nothing_left_is_the_requests_fault(engine: RealEngine) -> None:
    request = make_request(
        "none", PROMPT, max_tokens=3, allowed_token_ids=(5,), bad_words=((5, 5),), temperature=0.0
    )
    events = [*engine.engine.add(request)]
    while engine.engine.has_work():
        events += engine.engine.step()
    assert [token for event in events for token in event.token_ids] == [5]
    assert "allowed_token_ids" in str(events[-1].error)
    assert events[-1].error_kind == "GrammarError"


def test_preemption_and_company_change_nothing(model: Path, engine: RealEngine) -> None:
    allowed = tuple(range(3, 60))
    bounds = {"allowed_token_ids": allowed, "bad_words": ((7, 8), *((t, t) for t in allowed))}
    alone = said(engine, "alone", **bounds)
    assert not any(a == b for a, b in pairwise(alone))
    with RealEngine(model, kv_memory="160KiB", max_num_batched_tokens=24) as small:
        small.add(make_request("alone", PROMPT, max_tokens=60, seed=3, temperature=2.0, **bounds))
        for number in range(14):
            small.step()
            urgent = list(range(number, number + 14))
            small.add(make_request(f"u{number}", urgent, max_tokens=40, seed=number, priority=-1))
        assert small.finish()["alone", 0].token_ids == alone
        assert small.stats.preemptions
