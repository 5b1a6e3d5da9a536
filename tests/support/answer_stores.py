"""Stores of answers for tests: one in memory, one that is broken; and an open door."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from headrace.fleet.cache.store import StoreError


class DictStore:
    """Keeps everything; time does not pass."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.is_away = False

    async def get(self, key: bytes) -> bytes | None:
        if self.is_away:
            raise StoreError("away")
        return self.values.get(key)

    async def put(self, key: bytes, value: bytes, ttl: float) -> None:
        self.values[key] = value

    async def forget(self, key: bytes | None = None) -> None:
        if key is None:
            self.values.clear()
        else:
            self.values.pop(key, None)

    async def size(self) -> tuple[int, int] | None:
        return len(self.values), sum(map(len, self.values.values()))

    async def close(self) -> None:
        return


class HangingStore(DictStore):
    """Finds nothing, and takes what it is to keep only when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = asyncio.Event()
        self.waiting = 0
        """Bytes that it was given and has not taken."""

    async def get(self, key: bytes) -> bytes | None:
        return None

    async def put(self, key: bytes, value: bytes, ttl: float) -> None:
        self.waiting += len(value)
        await self.goes_on.wait()
        self.waiting -= len(value)
        await super().put(key, value, ttl)


class BrokenStore:
    """Fails at everything."""

    async def get(self, key: bytes) -> bytes | None:
        raise StoreError("broken")

    async def put(self, key: bytes, value: bytes, ttl: float) -> None:
        raise StoreError("broken")

    async def forget(self, key: bytes | None = None) -> None:
        raise StoreError("broken")

    async def size(self) -> tuple[int, int] | None:
        raise StoreError("broken")

    async def close(self) -> None:
        return


@contextlib.asynccontextmanager
async def admitted() -> AsyncIterator[None]:
    """Everybody may have an answer that costs nothing."""
    yield
