"""Calls that block, for a driver on an event loop: in a thread, one at a time."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from headrace.core.errors import DriverError

T = TypeVar("T")


class OneAtATime:
    """A caller who is cancelled, or waits no longer, leaves a thread that goes on; the next call waits for its end."""

    def __init__(self, place: str, timeout: float | None = None) -> None:
        """`place` is what does not answer, in the words of an error; `timeout` seconds for a call and its turn."""
        self._place = place
        self._timeout = timeout
        self._lock = asyncio.Lock()

    async def do(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises. Raises DriverError if it takes too long."""
        task = asyncio.ensure_future(self._locked(work))
        try:
            async with asyncio.timeout(self._timeout):
                return await asyncio.shield(task)
        except TimeoutError:
            if task.done():
                return task.result()  # it was the work's own
            raise DriverError(f"{self._place} has not answered for {self._timeout:g} s.") from None
        finally:
            if not task.done():
                task.add_done_callback(_forget)

    async def _locked(self, work: Callable[[], T]) -> T:
        async with self._lock:
            return await asyncio.to_thread(work)


def _forget(task: "asyncio.Future[T]") -> None:
    """Nobody waits for what comes of it."""
    if not task.cancelled():
        task.exception()
