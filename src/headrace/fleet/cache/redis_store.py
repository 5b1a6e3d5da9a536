"""One cache for several gateways: Redis, by `redis.asyncio`, which is imported only when it is configured.

Redis bounds itself: give it `maxmemory` and `maxmemory-policy allkeys-lru`. Every call has a deadline, and after
failures in a row Redis is left alone for a while, so that a dead one costs nothing but the misses. A call that gets no
place among those under way in time is a miss too, and no failure: Redis was not asked.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any, Final, TypeVar

from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.fleet.cache.fuse import Fuse
from headrace.fleet.cache.store import StoreError

T = TypeVar("T")

PREFIX: Final = b"headrace:answer:"
_SCAN: Final = 500
_MAX_CONNECTIONS: Final = 64


class RedisStore:
    """`client` is a `redis.asyncio.Redis`; `connect` makes one from an address."""

    def __init__(self, client: Any, *, timeout: float, clock: Clock) -> None:
        self._client = client
        self._timeout = timeout
        self._fuse = Fuse(clock)
        self._places = asyncio.Semaphore(_MAX_CONNECTIONS)

    @classmethod
    def connect(cls, url: str, *, timeout: float, clock: Clock) -> "RedisStore":
        """Raises ConfigError for an address that is none, or where the package is missing."""
        try:
            from redis import asyncio as redis
        except ImportError:
            raise ConfigError(
                "cache.redis needs the package redis: pip install 'headrace[redis]'."
            ) from None
        try:
            # It has a connection for every place: who has one does not wait for the other, but while that is given back.
            pool = redis.BlockingConnectionPool.from_url(
                url,
                max_connections=_MAX_CONNECTIONS,
                timeout=timeout,
                socket_timeout=timeout,
                socket_connect_timeout=timeout,
            )
        except ValueError:
            raise ConfigError("cache.redis must be a redis:// or rediss:// address.") from None
        return cls(redis.Redis.from_pool(pool), timeout=timeout, clock=clock)

    async def get(self, key: bytes) -> bytes | None:
        value = await self._call(lambda: self._client.get(PREFIX + key))
        return bytes(value) if value is not None else None

    async def put(self, key: bytes, value: bytes, ttl: float) -> None:
        milliseconds = max(1, int(ttl * 1000))
        await self._call(lambda: self._client.set(PREFIX + key, value, px=milliseconds))

    async def forget(self, key: bytes | None = None) -> None:
        """All: those that are there when it looks, in steps."""
        if key is not None:
            await self._call(lambda: self._client.delete(PREFIX + key))
            return
        cursor = 0
        while True:
            cursor, keys = await self._call(
                lambda at=cursor: self._client.scan(at, match=PREFIX + b"*", count=_SCAN)
            )
            if keys:
                await self._call(lambda found=keys: self._client.unlink(*found))
            if not cursor:
                return

    async def size(self) -> tuple[int, int] | None:
        """Not known: others use it too."""
        return None

    async def close(self) -> None:
        await self._client.aclose()

    async def _call(self, ask: Any) -> Any:
        self._check()
        try:
            async with asyncio.timeout(self._timeout):
                await self._places.acquire()
        except TimeoutError:
            raise StoreError("Too many look-ups wait for Redis.") from None
        try:
            self._check()  # it may have failed those before us
            return await self._asked(ask)
        finally:
            self._places.release()

    def _check(self) -> None:
        if self._fuse.is_blown:
            raise StoreError("Redis is left alone after failures.")

    async def _asked(self, ask: Any) -> Any:
        try:
            async with asyncio.timeout(self._timeout):
                answer: Awaitable[Any] = ask()
                found = await answer
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001  redis' own, the system's, a time that ran out
            self._fuse.failed()
            raise StoreError(f"Redis did not answer: {type(error).__name__}.") from None
        self._fuse.held()
        return found
