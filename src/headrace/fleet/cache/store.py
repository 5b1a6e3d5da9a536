"""Where packed answers lie. A store may forget anything at any time; it never makes a request fail."""

from typing import Protocol

from headrace.core.errors import HeadraceError


class StoreError(HeadraceError):
    """The store did not answer, or is broken: for the request that is a miss."""


class Store(Protocol):
    """Bytes by 32-byte keys, each for a time. Safe to use from one event loop, by many tasks."""

    async def get(self, key: bytes) -> bytes | None:
        """The bytes, if they are there and their time has not run out. Raises StoreError."""
        ...

    async def put(self, key: bytes, value: bytes, ttl: float) -> None:
        """Keep for `ttl` seconds, at the price of what was least recently used. Raises StoreError."""
        ...

    async def forget(self, key: bytes | None = None) -> None:
        """One, or all. Raises StoreError."""
        ...

    async def size(self) -> tuple[int, int] | None:
        """Entries and bytes; None where that is not known (a shared Redis). Raises StoreError."""
        ...

    async def close(self) -> None:
        """Give back what it holds."""
        ...
