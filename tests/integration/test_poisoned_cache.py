"""Keys and values that are not finite fail the request that reads them, and no request after it."""

import numpy as np
import pytest
from tests.support.engine_run import make_request
from tests.support.fake_clock import FakeClock
from tests.support.tiny_models import make_tiny_llama

from headrace.config.engine import EngineConfig, ExecutorConfig, ModelConfig
from headrace.engine.build import build_engine

PROMPT = [3 + 7 * i % 300 for i in range(40)]


@pytest.fixture
def engine(tmp_path):
    make_tiny_llama(tmp_path)
    config = EngineConfig(
        model=ModelConfig(model=str(tmp_path), cache_packed=False),
        executor=ExecutorConfig(backend="cpu", threads=1),
    )
    engine = build_engine(config, FakeClock(), lambda phase: None).engine
    yield engine
    engine.close()


def run(engine, name):
    events = engine.add(make_request(name, PROMPT, temperature=0.0, max_tokens=4))
    while engine.has_work():
        events += engine.step()
    assert engine.check_integrity() == []
    return events


def test_a_poisoned_prefix_fails_once(engine):
    first = run(engine, "first")
    token_ids = [event.token_ids for event in first]
    assert first[-1].error is None

    cache = engine._executor._parts.storage.cache
    (pool,) = engine._scheduler._ledger._pools
    block = next(iter(pool.cache.block_of.values()))
    poison = cache.export_block(0, block)
    poison[:] = np.nan
    cache.import_block(0, block, poison)

    hit = run(engine, "hit")
    assert hit[-1].error_kind == "InternalError"
    assert "not finite" in hit[-1].error

    third = run(engine, "third")
    assert third[0].num_cached_tokens == 0
    assert [event.token_ids for event in third] == token_ids
