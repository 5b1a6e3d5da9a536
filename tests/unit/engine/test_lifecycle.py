"""Parking gives a real engine's memory back, and loading makes another one."""

import gc
import weakref

import pytest
from tests.support.engine_run import make_request
from tests.support.fake_clock import FakeClock
from tests.support.tiny_models import make_tiny_llama

from headrace.config.engine import EngineConfig, ExecutorConfig, ModelConfig, SchedulerConfig
from headrace.core.errors import ModelLoadError
from headrace.core.stats import EngineStats, ReplicaState
from headrace.engine.build import build_engine
from headrace.engine.lifecycle import Lifecycle


def config(model, *, num_plans=1):
    return EngineConfig(
        model=ModelConfig(model=str(model), cache_packed=False),
        scheduler=SchedulerConfig(max_uncommitted_plans=num_plans),
        executor=ExecutorConfig(backend="cpu", threads=1),
    )


class Process:
    """What an engine process does when it builds."""

    def __init__(self, engine_config):
        self.engine_config = engine_config

    def build(self, given):
        built = build_engine(given, FakeClock(), lambda phase: None)
        gc.collect()
        gc.freeze()
        return built.engine


@pytest.fixture(autouse=True)
def thawed():
    yield
    gc.unfreeze()


def answer(engine):
    events = engine.add(make_request("r", [5, 6, 7], temperature=0.0, max_tokens=3))
    while engine.has_work():
        events += engine.step()
    return [token for event in events for token in event.token_ids]


def living(engine_config):
    life = Lifecycle(Process(engine_config).build)
    life.load(engine_config)
    return life


@pytest.mark.parametrize("num_plans", [1, 2])
def test_unloading_gives_weights_keys_and_values_back_and_loading_takes_them_again(
    tmp_path, num_plans
):
    engine_config = config(make_tiny_llama(tmp_path), num_plans=num_plans)
    life = living(engine_config)
    said = answer(life.engine)
    executor = life.engine._executor
    parts = (executor if num_plans == 1 else executor._inner)._parts
    held = [
        weakref.ref(parts.storage.cache),
        weakref.ref(parts.program),
        weakref.ref(parts.backend),
    ]
    del executor, parts
    life.drain()
    assert (life.state, life.refusal) == (ReplicaState.DRAINING, "The engine is draining.")
    life.unload()
    assert life.state is ReplicaState.EMPTY
    assert [ref() for ref in held] == [None, None, None]
    assert life.engine.stats() == EngineStats()
    assert not life.engine.has_work()
    life.drain()
    life.park()
    life.resume()
    assert life.state is ReplicaState.EMPTY, "there is nothing to drain, park or wake"
    life.load(engine_config)
    assert (life.state, life.refusal) == (ReplicaState.READY, None)
    assert answer(life.engine) == said
    life.engine.close()


@pytest.mark.parametrize("num_plans", [1, 2])
def test_parking_forgets_keys_and_values_and_nothing_else(tmp_path, num_plans):
    life = living(config(make_tiny_llama(tmp_path), num_plans=num_plans))
    prompt = make_request("r", list(range(5, 45)), temperature=0.0, max_tokens=3)
    events = life.engine.add(prompt)
    while life.engine.has_work():
        events += life.engine.step()
    said = answer(life.engine)
    engine = life.engine
    assert engine.stats().blocks_cached
    assert engine.fail_all("parked") == []
    life.park()
    assert (life.state, life.engine) == (ReplicaState.PARKED, engine)
    stats = engine.stats()
    assert (stats.blocks_cached, stats.blocks_held) == (0, 0)
    assert engine.check_integrity() == []
    life.resume()
    assert life.state is ReplicaState.READY
    assert answer(engine) == said
    engine.close()


def test_what_cannot_be_loaded_leaves_nothing(tmp_path):
    life = living(config(make_tiny_llama(tmp_path / "model")))
    with pytest.raises(ModelLoadError):
        life.load(config(tmp_path / "none"))
    assert life.state is ReplicaState.EMPTY
