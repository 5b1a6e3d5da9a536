import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from fakeredis import FakeAsyncRedis, FakeServer
from tests.support.fake_clock import FakeClock
from tests.support.redis_server import redis_server

from headrace.config.fleet.cache import CacheConfig
from headrace.core.errors import ConfigError
from headrace.fleet.cache.redis_store import PREFIX, RedisStore
from headrace.fleet.cache.store import StoreError


async def test_two_gateways_share_answers() -> None:
    server, clock = FakeServer(), FakeClock()
    one, two = (
        RedisStore(FakeAsyncRedis(server=server), timeout=5.0, clock=clock) for _ in range(2)
    )
    assert await one.get(b"\0\xff") is None
    await one.put(b"\0\xff", b"\xfe", 60.0)
    assert await two.get(b"\0\xff") == b"\xfe"
    assert await one.size() is None
    client = FakeAsyncRedis(server=server)
    assert 59_000 < await client.pttl(PREFIX + b"\0\xff") <= 60_000
    await client.set(b"somebody else's", b"1")
    await two.put(b"other", b"2", 60.0)
    await two.forget(b"other")
    assert await one.get(b"other") is None
    await two.forget()
    assert await one.get(b"\0\xff") is None
    assert await client.get(b"somebody else's") == b"1"
    for closed in (one, two):
        await closed.close()
    await client.aclose()


class Slow:
    """A Redis that does not answer."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers = False

    async def get(self, key: bytes) -> Any:
        self.asked += 1
        if not self.answers:
            await asyncio.sleep(60)
        return b"v"


async def test_a_dead_one_is_left_alone_for_a_while() -> None:
    client, clock = Slow(), FakeClock()
    store = RedisStore(client, timeout=0.001, clock=clock)
    for _ in range(10):
        with pytest.raises(StoreError):
            await store.get(b"k")
    assert client.asked == 3
    clock.advance(6)
    client.answers = True
    assert await store.get(b"k") == b"v"
    assert await store.get(b"k") == b"v"


async def test_a_client_that_leaves_says_nothing_against_redis() -> None:
    client = Slow()
    store = RedisStore(client, timeout=60.0, clock=FakeClock())
    for _ in range(5):
        waiting = asyncio.ensure_future(store.get(b"k"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    client.answers = True
    assert await store.get(b"k") == b"v"


class Gated:
    """A Redis that answers when it may; it notes how many are asking at once."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.asked = self.most = self._now = 0

    async def get(self, key: bytes) -> Any:
        self.asked += 1
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            await self.gate.wait()
        finally:
            self._now -= 1
        return b"v"


class Unhurried(RedisStore):
    """Its calls have all the time that they need; those that wait for a place have what is configured."""

    async def _asked(self, ask: Any) -> Any:
        return await ask()


async def test_look_ups_that_get_no_place_in_time_are_misses_and_no_failures() -> None:
    client = Gated()
    store = Unhurried(client, timeout=CacheConfig().redis_timeout, clock=FakeClock())
    burst = [asyncio.ensure_future(store.get(b"k")) for _ in range(300)]
    # Whoever has no place gives up; nobody is answered before.
    crowd = set(burst)
    while len(crowd) > 64:
        done, crowd = await asyncio.wait(crowd, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            with pytest.raises(StoreError, match="Too many"):
                each.result()
    client.gate.set()
    assert await asyncio.gather(*crowd) == [b"v"] * 64
    assert client.asked == client.most == 64
    assert not store._fuse.is_blown
    assert await store.get(b"k") == b"v"


async def test_a_client_that_leaves_gives_its_place_back() -> None:
    client = Gated()
    store = RedisStore(client, timeout=60.0, clock=FakeClock())
    for _ in range(2):
        burst = [asyncio.ensure_future(store.get(b"k")) for _ in range(100)]
        await asyncio.sleep(0)
        for each in burst:
            each.cancel()
        await asyncio.gather(*burst, return_exceptions=True)
    client.gate.set()
    assert await asyncio.gather(*(store.get(b"k") for _ in range(100))) == [b"v"] * 100


def test_an_address_that_is_none() -> None:
    with pytest.raises(ConfigError, match="redis://"):
        RedisStore.connect("http://x", timeout=1.0, clock=FakeClock())


async def test_a_refused_connection_is_a_store_error() -> None:
    store = RedisStore.connect("redis://127.0.0.1:1/0", timeout=5.0, clock=FakeClock())
    with pytest.raises(StoreError, match="did not answer"):
        await store.get(b"k")
    await store.close()


async def test_a_burst_waits_for_connections_and_is_answered() -> None:
    """More look-ups at once than there are connections: none of them is a failure."""
    with (
        tempfile.TemporaryDirectory(prefix="hr-") as directory,
        redis_server(Path(directory)) as url,
    ):
        store = RedisStore.connect(url, timeout=20.0, clock=FakeClock())
        await store.put(b"k", b"v", 60.0)
        assert await asyncio.gather(*(store.get(b"k") for _ in range(300))) == [b"v"] * 300
        await store.close()
