"""The tier below the KV cache: blocks by hash, in the canonical form, in memory of a bounded size."""

from collections import OrderedDict
from threading import Lock
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class BlockTier(Protocol):
    """Where blocks lie outside the cache. Called from any thread.

    Contents are float32 [2, layers of the group, G, P, D], keys then values, and are not changed any more.
    """

    def holds(self, group: int, key: bytes) -> bool:
        """Whether `fetch` would give something."""
        ...

    def fetch(self, group: int, key: bytes) -> NDArray[np.float32] | None:
        """The block; None when it is gone. May take its time, and may raise."""
        ...

    def keep(self, group: int, key: bytes, data: NDArray[np.float32]) -> None:
        """Remember a block as long as there is room."""
        ...

    def drop(self, group: int, key: bytes) -> None:
        """Forget a block, if it is known."""
        ...

    def clear(self) -> None:
        """Forget all blocks."""
        ...


class MemoryTier:
    """Blocks in this process's memory. Those used least recently make room."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._blocks: OrderedDict[tuple[int, bytes], NDArray[np.float32]] = OrderedDict()
        self._lock = Lock()

    @property
    def num_bytes(self) -> int:
        """Taken by blocks; at most `max_bytes`."""
        return self._num_bytes

    def holds(self, group: int, key: bytes) -> bool:
        """Part of `BlockTier`."""
        return (group, key) in self._blocks

    def fetch(self, group: int, key: bytes) -> NDArray[np.float32] | None:
        """Part of `BlockTier`."""
        with self._lock:
            data = self._blocks.get((group, key))
            if data is not None:
                self._blocks.move_to_end((group, key))
            return data

    def keep(self, group: int, key: bytes, data: NDArray[np.float32]) -> None:
        """Part of `BlockTier`. A block larger than all the room is not kept."""
        if data.nbytes > self._max_bytes:
            return
        with self._lock:
            self._forget(group, key)
            while self._num_bytes + data.nbytes > self._max_bytes:
                self._num_bytes -= self._blocks.popitem(last=False)[1].nbytes
            self._blocks[group, key] = data
            self._num_bytes += data.nbytes

    def drop(self, group: int, key: bytes) -> None:
        """Part of `BlockTier`."""
        with self._lock:
            self._forget(group, key)

    def clear(self) -> None:
        """Part of `BlockTier`."""
        with self._lock:
            self._blocks.clear()
            self._num_bytes = 0

    def _forget(self, group: int, key: bytes) -> None:
        data = self._blocks.pop((group, key), None)
        if data is not None:
            self._num_bytes -= data.nbytes
