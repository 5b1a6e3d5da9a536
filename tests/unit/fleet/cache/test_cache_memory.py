"""Distinct questions without end, and no more memory than was allowed."""

import gc
import random

import psutil
import pytest
from tests.support.fake_clock import FakeClock

from headrace.fleet.cache.semantic.index import VectorIndex, vector_of
from headrace.fleet.cache.sqlite_store import SqliteStore

MIB = 1 << 20
NUMBERS = [100_000, pytest.param(1_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])]


def resident() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


@pytest.mark.parametrize("number", NUMBERS)
async def test_the_store_is_flat(number: int) -> None:
    store = SqliteStore(None, max_bytes=4 * MIB, max_entries=500, clock=FakeClock())

    async def put(first: int, count: int) -> None:
        for at in range(first, first + count):
            await store.put(at.to_bytes(32, "big"), at.to_bytes(8, "big") * 100, 3600.0)

    await put(0, 1500)  # three times what it holds
    before = resident()
    await put(1500, number)
    assert resident() - before < 8 * MIB
    size = await store.size()
    assert size is not None
    assert size[0] <= 500
    await store.close()


@pytest.mark.parametrize("number", NUMBERS)
def test_the_index_is_flat(number: int) -> None:
    draw = random.Random(3)
    vectors = [vector_of([draw.gauss(0, 1) for _ in range(64)]) for _ in range(100)]
    index = VectorIndex(max_entries=1000, max_scan=1000)

    def add(first: int, count: int) -> None:
        for at in range(first, first + count):
            vector = vectors[at % 100]
            assert vector is not None
            index.add(
                at.to_bytes(32, "big"), (at % 5000).to_bytes(32, "big"), f"question {at}", vector
            )

    add(0, 10_000)
    before = resident()
    add(10_000, number)
    assert resident() - before < 8 * MIB
    assert len(index) == 1000
