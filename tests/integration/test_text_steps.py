"""Texts and sequences share an engine: neither changes the other, starves the other, nor takes it down."""

import pytest
from tests.support.encoders import save_encoder
from tests.support.engine_run import make_request
from tests.support.fake_clock import FakeClock
from tests.support.tiny_models import make_tiny_llama

from headrace.config.engine import EngineConfig
from headrace.config.load import build as build_config
from headrace.core.events import FinishReason
from headrace.core.pooling import PoolingParams, PoolKind
from headrace.engine.build import build_engine
from headrace.engine.executor.pooler import Pooler


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("llama"))


def engine_of(path, **settings):
    settings = {"threads": 1, "cache_packed": False, "max_num_batched_tokens": 32} | settings
    config = build_config(EngineConfig, model=str(path), **settings)
    return build_engine(config, FakeClock(), lambda _: None).engine


def text(name, size):
    from msgspec.structs import replace

    ids = [3 + (i * 7 + size) % 50 for i in range(size)]
    return replace(make_request(name, ids), pooling=PoolingParams(PoolKind.MEAN))


def run(engine, requests):
    """(tokens by request, vectors by request, errors by request, which kind each step was)."""
    tokens, vectors, errors, kinds = {}, {}, {}, []
    for request in requests:
        for event in engine.add(request):
            errors[event.request_id] = event.error
    steps = 0
    while engine.has_work() and (steps := steps + 1) < 500:
        for event in engine.step():
            tokens.setdefault(event.request_id, []).extend(event.token_ids)
            if event.vector is not None:
                vectors[event.request_id] = event.vector
            if event.finish is FinishReason.ERROR:
                errors[event.request_id] = event.error
            kinds.append("text" if event.vector is not None else "token")
    assert not engine.has_work()
    return tokens, vectors, errors, kinds


SEQUENCES = [make_request(f"s{i}", [5 + i, 6, 7], max_tokens=12) for i in range(3)]
TEXTS = [text(f"t{i}", size) for i, size in enumerate((30, 20, 40, 5, 31))]


@pytest.mark.parametrize("plans", [1, 2])
def test_neither_changes_the_other(llama, plans):
    alone = run(engine_of(llama), SEQUENCES)[0]
    vectors = {t.request_id: run(engine_of(llama), [t])[1][t.request_id] for t in TEXTS}
    engine = engine_of(llama, max_uncommitted_plans=plans)
    tokens, found, errors, kinds = run(engine, [*SEQUENCES, *TEXTS])
    engine.close()
    assert not errors
    assert {name: tokens[name] for name in alone} == alone
    assert found == vectors
    # Turns are taken: texts do not wait for sequences to end, nor the other way round.
    assert "token" in kinds[kinds.index("text") :]
    assert "text" in kinds[kinds.index("token") :]


@pytest.mark.parametrize("plans", [1, 2])
def test_a_text_that_fails_its_step_fails_alone(llama, plans, monkeypatch):
    good = Pooler.run

    def run_or_fail(self, texts):
        if any(len(row.token_ids) == 20 for row in texts):
            raise ValueError("bad text")
        return good(self, texts)

    monkeypatch.setattr(Pooler, "run", run_or_fail)
    alone = run(engine_of(llama), SEQUENCES)[0]
    engine = engine_of(llama, max_uncommitted_plans=plans, max_num_batched_tokens=128)
    tokens, vectors, errors, _ = run(engine, [*SEQUENCES, *TEXTS])
    engine.close()
    assert set(errors) == {"t1"}
    assert set(vectors) == {"t0", "t2", "t3", "t4"}
    assert {name: tokens[name] for name in alone} == alone
    assert engine.check_integrity() == []


def test_a_text_leaves_no_blocks_and_counts(llama):
    engine = engine_of(llama)
    before = engine.stats()
    run(engine, TEXTS)
    after = engine.stats()
    assert (after.blocks_free, after.blocks_cached) == (before.blocks_free, before.blocks_cached)
    assert after.prompt_tokens == sum(t.num_prompt_tokens for t in TEXTS)
    assert after.started == after.finished["stop"] == len(TEXTS)
    assert engine.last_step.num_prefill_tokens > 0


def test_an_encoder_runs_texts_only(tmp_path):
    save_encoder(tmp_path)
    engine = engine_of(tmp_path, max_uncommitted_plans=2)
    _, vectors, errors, _ = run(engine, [*SEQUENCES, *TEXTS, text("long", 97)])
    engine.close()
    assert set(vectors) == {t.request_id for t in TEXTS}
    assert all("makes no text" in errors[s.request_id] for s in SEQUENCES)
    assert "takes 96" in errors["long"]
