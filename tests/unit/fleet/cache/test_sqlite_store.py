import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from tests.support.fake_clock import FakeClock
from tests.support.patience import PATIENCE

from headrace.core.errors import ConfigError
from headrace.fleet.cache import sqlite_store
from headrace.fleet.cache.sqlite_store import SqliteStore
from headrace.fleet.cache.store import StoreError

LIMITS = {"max_bytes": 100_000, "max_entries": 100}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def store(clock: FakeClock) -> AsyncIterator[SqliteStore]:
    made = SqliteStore(None, clock=clock, **LIMITS)
    yield made
    await made.close()


async def test_what_is_put_is_got(store: SqliteStore) -> None:
    assert await store.get(b"k") is None
    await store.put(b"k", b"v", 60.0)
    await store.put(b"k", b"w\0", 60.0)
    assert await store.get(b"k") == b"w\0"
    assert await store.size() == (1, 130)
    await store.forget(b"k")
    assert await store.get(b"k") is None
    assert await store.size() == (0, 0)


async def test_time_runs_out(store: SqliteStore, clock: FakeClock) -> None:
    await store.put(b"a", b"v", 10.0)
    await store.put(b"b", b"v", 100.0)
    clock.advance(11)
    assert await store.get(b"a") is None
    assert await store.get(b"b") == b"v"
    await store.put(b"c", b"v", 10.0)  # sweeps
    assert await store.size() == (2, 258)


async def test_the_least_recently_used_goes_first(store: SqliteStore, clock: FakeClock) -> None:
    for number in range(100):
        await store.put(b"%d" % number, b"v", 1e6)
        clock.advance(1)
    clock.advance(60)
    assert await store.get(b"0") == b"v"  # used again
    await store.put(b"new", b"v", 1e6)
    size = await store.size()
    assert size is not None
    assert size[0] <= 100
    assert await store.get(b"0") == b"v"
    assert await store.get(b"1") is None
    assert await store.get(b"99") == b"v"
    assert store.evictions > 0


async def test_bytes_have_a_bound(store: SqliteStore, clock: FakeClock) -> None:
    for number in range(60):
        await store.put(b"%d" % number, b"v" * 5000, 1e6)
        clock.advance(1)
        size = await store.size()
        assert size is not None
        assert size[1] <= 100_000
    assert await store.get(b"59") is not None
    await store.put(b"huge", b"v" * 200_000, 1e6)
    assert await store.get(b"huge") is None
    assert await store.get(b"59") is not None


async def test_a_file_outlives_the_process(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "deep" / "answers.db"
    first = SqliteStore(str(path), clock=clock, **LIMITS)
    second = SqliteStore(str(path), clock=clock, **LIMITS)  # two gateways
    await first.put(b"a", b"1", 60.0)
    await second.put(b"b", b"2", 60.0)
    assert await first.size() == await second.size() == (2, 258)
    await first.close()
    await second.close()
    assert path.stat().st_mode & 0o077 == 0
    third = SqliteStore(str(path), clock=clock, **LIMITS)
    assert (await third.get(b"a"), await third.get(b"b")) == (b"1", b"2")
    await third.forget()
    assert await third.size() == (0, 0)
    await third.close()


async def test_a_damaged_file_is_emptied(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "answers.db"
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    store = SqliteStore(str(path), clock=clock, **LIMITS)
    await store.put(b"a", b"1", 60.0)
    assert await store.get(b"a") == b"1"
    await store.close()


async def test_a_file_of_another_version_is_emptied(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "answers.db"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE x (y)")
    db.execute("PRAGMA user_version = 99")
    db.close()
    store = SqliteStore(str(path), clock=clock, **LIMITS)
    assert await store.size() == (0, 0)
    await store.close()


def test_somebody_elses_file_is_left_alone(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "thesis.txt"
    path.write_text("The thesis." * 100)
    with pytest.raises(ConfigError, match=r"thesis\.txt"):
        SqliteStore(str(path), clock=clock, **LIMITS)
    assert path.read_text().startswith("The thesis.")


def test_a_folder_is_no_file(tmp_path: Path, clock: FakeClock) -> None:
    with pytest.raises(ConfigError):
        SqliteStore(str(tmp_path), clock=clock, **LIMITS)


async def test_a_closed_store_says_so(clock: FakeClock) -> None:
    store = SqliteStore(None, clock=clock, **LIMITS)
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.get(b"k")


@pytest.mark.parametrize("look", [lambda store: store.get(b"k"), SqliteStore.size])
async def test_a_disk_that_hangs_is_a_miss_and_left_alone(
    look: Callable[[SqliteStore], Awaitable[object]],
    store: SqliteStore,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sqlite_store, "_PATIENCE", 0.01)
    gate = threading.Event()
    hanging = store._thread.submit(gate.wait, 60)
    try:
        for _ in range(3):
            with pytest.raises(StoreError, match="too slow"):
                await look(store)
        with pytest.raises(StoreError, match="left alone"):
            await look(store)
    finally:
        gate.set()
    hanging.result(PATIENCE)
    clock.advance(10.0)
    monkeypatch.setattr(sqlite_store, "_PATIENCE", 60.0)
    assert await store.get(b"k") is None
