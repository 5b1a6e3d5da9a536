"""The engine is built for the context that it really has, whatever that does to windows and groups."""

import pytest
from tests.support.fake_clock import FakeClock
from tests.support.tiny_gemma import make_tiny_gemma

from headrace.config.engine import EngineConfig, ExecutorConfig, MemoryConfig, ModelConfig
from headrace.engine.build import build_engine

WINDOW = 64


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    return make_tiny_gemma(tmp_path_factory.mktemp("gemma"), window=WINDOW, max_context=1024)


def build(path, *, max_context=0, kv_memory="auto"):
    config = EngineConfig(
        model=ModelConfig(model=str(path), cache_packed=False, max_context=max_context),
        memory=MemoryConfig(kv_memory=kv_memory),
        executor=ExecutorConfig(backend="reference"),
    )
    return build_engine(config, FakeClock(), lambda phase: None)


@pytest.mark.parametrize("max_context", [WINDOW // 2, WINDOW, WINDOW + 16])
def test_a_context_within_the_window_joins_the_kv_groups(gemma, max_context):
    assert build(gemma, max_context=max_context).info.max_context == max_context


def test_a_context_that_memory_cuts_below_the_window_is_fitted_and_said(gemma):
    info = build(gemma, kv_memory="40k").info
    assert 32 <= info.max_context <= WINDOW
    assert any("fitted to KV memory" in line for line in info.lines)


def test_names_of_blocks_tell_windows_from_none(gemma):
    contexts = (WINDOW // 2, WINDOW, 512, 1024)
    ledgers = [build(gemma, max_context=c).engine._scheduler._ledger for c in contexts]
    short, edge, long, longest = (ledger.chain(None, b"").root for ledger in ledgers)
    assert short == edge
    assert long == longest
    assert short != long
