"""Loads and stores of the executor's storage, against a tier that may be slow, empty or broken."""

import threading
import time

import numpy as np
import pytest
from tests.support.patience import PATIENCE

from headrace.core.step import BlockLanding, BlockTransfer, StepPlan
from headrace.engine.executor.kv_storage import KVStorage
from headrace.engine.executor.tier import MemoryTier
from headrace.kernels.dispatch import create_backend
from headrace.kernels.values import DType, KVLayout

LAYOUT = KVLayout(2, 2, 8, 16, DType.F32, (0, 0), (6,))
SHAPE = (2, 2, 2, 16, 8)


def content(seed):
    return np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)


def storage_over(tier):
    return KVStorage(
        create_backend("reference", isa="auto", threads=1).create_kv_cache(LAYOUT), tier
    )


def plan(loads=(), stores=()):
    return StepPlan(step_id=1, rows=(), block_loads=tuple(loads), block_stores=tuple(stores))


def landed(storage, count):
    found = []
    deadline = time.monotonic() + PATIENCE
    while len(found) < count and time.monotonic() < deadline:
        found += storage.take_landed()
        time.sleep(0.001)
    return found


@pytest.fixture
def tier():
    return MemoryTier(1 << 20)


def test_a_stored_block_is_loaded_into_another(tier):
    storage = storage_over(tier)
    storage.cache.import_block(0, 2, content(1))
    storage.finish(plan(stores=[BlockTransfer(0, 2, b"k")]))
    storage.begin(plan(loads=[BlockTransfer(0, 4, b"k")]))
    assert landed(storage, 1) == [BlockLanding(0, 4, b"k", True)]
    np.testing.assert_array_equal(storage.cache.export_block(0, 4), content(1))
    assert storage.take_landed() == []
    storage.close()


def test_what_is_gone_or_raises_or_does_not_fit_lands_badly_and_is_forgotten(tier, caplog):
    class Broken(MemoryTier):
        def fetch(self, group, key):
            if key == b"raises":
                raise OSError("the disk is on fire")
            return super().fetch(group, key)

    tier = Broken(1 << 20)
    tier.keep(0, b"raises", content(1))
    tier.keep(0, b"small", content(1)[:, :1])
    storage = storage_over(tier)
    keys = [b"gone", b"raises", b"small"]
    storage.begin(plan(loads=[BlockTransfer(0, i, key) for i, key in enumerate(keys)]))
    assert [(x.key, x.is_good) for x in landed(storage, 3)] == [(key, False) for key in keys]
    assert not any(tier.holds(0, key) for key in keys)
    assert "the disk is on fire" in caplog.text
    storage.close()


def test_a_load_that_is_not_over_is_not_begun_again(tier):
    gate, calls = threading.Event(), []

    class Slow(MemoryTier):
        def fetch(self, group, key):
            calls.append(key)
            gate.wait(PATIENCE)
            return super().fetch(group, key)

    tier = Slow(1 << 20)
    tier.keep(0, b"k", content(1))
    storage = storage_over(tier)
    load = BlockTransfer(0, 1, b"k")
    storage.begin(plan(loads=[load]))
    storage.begin(plan(loads=[load]))
    assert storage.take_landed() == []  # and nobody waited
    gate.set()
    assert len(landed(storage, 1)) == 1
    storage.close()
    assert calls == [b"k"]


def test_a_store_that_fails_is_logged_and_forgotten(tier, caplog):
    storage = storage_over(tier)
    storage.finish(plan(stores=[BlockTransfer(0, 99, b"a"), BlockTransfer(0, 1, b"b")]))
    assert "could not be stored" in caplog.text
    assert (tier.holds(0, b"a"), tier.holds(0, b"b")) == (False, True)
    storage.close()


def test_closing_does_not_begin_what_waits(tier):
    storage = storage_over(tier)
    storage.begin(plan(loads=[BlockTransfer(0, i, bytes([i])) for i in range(5)]))
    storage.close()
    assert len(storage.take_landed()) <= 5


def test_the_tier_forgets_what_was_used_least_recently():
    size = content(0).nbytes
    tier = MemoryTier(3 * size + 1)
    for key in (b"a", b"b", b"c"):
        tier.keep(0, key, content(1))
    tier.fetch(0, b"a")
    tier.keep(0, b"d", content(2))
    assert [tier.holds(0, key) for key in (b"a", b"b", b"c", b"d")] == [True, False, True, True]
    tier.keep(0, b"a", content(3))
    assert tier.num_bytes == 3 * size
    tier.drop(0, b"a")
    tier.drop(0, b"a")
    assert tier.num_bytes == 2 * size
    assert not tier.holds(1, b"c")
    tier.keep(0, b"huge", np.zeros((4, *SHAPE), np.float32))
    assert not tier.holds(0, b"huge")
    assert tier.num_bytes == 2 * size
