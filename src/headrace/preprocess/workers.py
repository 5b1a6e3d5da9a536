"""Threads for templates and tokenising, so that a long prompt never holds up the event loop.

Tokenising lets go of the interpreter's lock (`tokenizers`' batch calls run in Rust without it), so the
loop runs on while a worker works. What is small is done on the loop itself: the way to a thread and back
costs more than the work, and a waiting thread may have to wait for the lock as long as a switch interval.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, ParamSpec, TypeVar

from headrace.core.errors import OverloadedError

P = ParamSpec("P")
T = TypeVar("T")

#: Bytes of a request that are prepared on the loop: a few tenths of a millisecond, less than one step.
INLINE_SIZE: Final = 2048


class Workers:
    """A bounded pool."""

    def __init__(self, threads: int, *, max_waiting: int = 1024) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="preprocess")
        self._max_pending = threads + max_waiting
        self._pending = 0
        self._lock = threading.Lock()

    @property
    def pending(self) -> int:
        """Calls that run or wait."""
        return self._pending

    async def run(
        self, size: int, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """The function's result; on this thread where `size`, the bytes that it works on, is small.

        Raises OverloadedError when too many calls wait already, and whatever the function raises. A
        caller that is cancelled leaves at once; its call is dropped if it has not begun.
        """
        if size <= INLINE_SIZE:
            return function(*args, **kwargs)
        with self._lock:
            if self._pending >= self._max_pending:
                raise OverloadedError("Too many prompts are waiting to be tokenised.")
            self._pending += 1
        future = self._executor.submit(function, *args, **kwargs)
        # Called once for every future, run or dropped: the count holds whatever becomes of the caller.
        future.add_done_callback(self._release)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Drop what waits, and let what runs come to its end."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _release(self, _: Future[Any]) -> None:
        with self._lock:
            self._pending -= 1
