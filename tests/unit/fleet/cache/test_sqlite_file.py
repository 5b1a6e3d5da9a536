"""The file of the embedded store: how large it gets, and what happens when it is damaged or in use."""

import asyncio
import sqlite3
from pathlib import Path

import pytest
from tests.support.fake_clock import FakeClock

from headrace.core.errors import ConfigError
from headrace.fleet.cache.sqlite_store import SqliteStore
from headrace.fleet.cache.store import StoreError

MAX_BYTES = 2 * 1024 * 1024
#: An empty file, and the log of what was written last.
SLACK = 64 * 1024 + 4 * 1024 * 1024


def opened(path: Path, max_bytes: int = MAX_BYTES) -> SqliteStore:
    return SqliteStore(str(path), max_bytes=max_bytes, max_entries=100_000, clock=FakeClock())


def on_disk(path: Path) -> int:
    return sum(one.stat().st_size for one in path.parent.iterdir() if one.suffix != ".db-shm")


async def fill(store: SqliteStore, count: int, size: int) -> None:
    for number in range(count):
        await store.put(number.to_bytes(32, "little"), bytes(size), 1e6)


@pytest.mark.parametrize("size", [2000, 5000, 200_000])
async def test_the_bound_is_that_of_the_file(tmp_path: Path, size: int) -> None:
    path = tmp_path / "answers.db"
    store = opened(path)
    await fill(store, 2 * MAX_BYTES // size, size)
    assert path.stat().st_size <= MAX_BYTES + 64 * 1024
    assert on_disk(path) <= MAX_BYTES + SLACK
    entries, _ = await store.size() or (0, 0)
    assert entries * size > MAX_BYTES / 4
    await store.close()


async def test_what_is_forgotten_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    store = opened(path)
    await store.put(b"k", b"a secret" * 5, 1e6)
    await fill(store, 300, 4000)
    await store.forget()
    assert on_disk(path) <= 64 * 1024
    assert b"a secret" not in path.read_bytes()
    await store.close()


async def test_a_smaller_bound_makes_the_file_smaller(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    store = opened(path)
    await fill(store, 400, 4000)
    await store.close()
    assert path.stat().st_size > MAX_BYTES / 2
    store = opened(path, max_bytes=256 * 1024)
    await fill(store, 4, 4000)
    await store.close()
    assert path.stat().st_size <= 256 * 1024 + 64 * 1024


async def look_at_all(store: SqliteStore) -> None:
    for number in range(400):
        await store.get(number.to_bytes(32, "little"))


def damage(path: Path) -> None:
    """All but its head and its sums."""
    with path.open("r+b") as file:
        file.seek(40 * 4096)
        file.write(b"\xa5" * (path.stat().st_size - 40 * 4096))


async def test_damage_that_is_found_late_costs_what_was_kept_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    store = opened(path)
    await fill(store, 400, 2000)
    await store.close()
    damage(path)
    store = opened(path)
    with pytest.raises(StoreError, match="malformed"):
        await look_at_all(store)
    await store.put(b"k", b"v", 1e6)
    assert await store.get(b"k") == b"v"
    assert await store.size() == (1, 129)
    await store.close()
    again = opened(path)
    assert await again.get(b"k") == b"v"
    await again.close()


async def test_the_file_that_another_gateway_has_begun_anew_stays(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    store = opened(path)
    await fill(store, 400, 2000)
    await store.close()
    first, second = opened(path), opened(path)
    damage(path)
    with pytest.raises(StoreError, match="malformed"):
        await look_at_all(first)
    await first.put(b"k", b"v", 1e6)
    with pytest.raises(StoreError, match="malformed"):
        await look_at_all(second)
    assert await second.get(b"k") == b"v"
    await second.put(b"l", b"w", 1e6)
    assert await first.get(b"l") == b"w"
    await first.close()
    await second.close()


async def test_a_file_that_is_in_use_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    await opened(path).close()
    path.unlink()
    other = sqlite3.connect(path)
    other.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(ConfigError, match="locked"):
            await asyncio.to_thread(opened, path)
        assert path.exists()
    finally:
        other.close()


async def test_gateways_that_start_together_share_the_file(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    stores = await asyncio.gather(*(asyncio.to_thread(opened, path) for _ in range(6)))
    for number, store in enumerate(stores):
        await store.put(b"%d" % number, b"v", 1e6)
    for store in stores:
        assert await store.size() == (6, 6 * 129)
        await store.close()
