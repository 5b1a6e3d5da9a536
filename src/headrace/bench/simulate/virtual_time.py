"""Time that passes only when nothing else is left to do: an asyncio loop that jumps to its next timer.

Code that waits (queues, probes, controllers) runs on it as it is; an hour of waiting takes as long as its events do.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from headrace.core.errors import InternalError

_ResultT = TypeVar("_ResultT")

#: `Clock.wall` at the start: a Thursday, midnight UTC, so that hours of a day are whole.
START_WALL = 1_700_006_400.0 - 1_700_006_400.0 % 86_400.0


class VirtualClock:
    """Implements `core.clock.Clock`. Starts at 0 and never moves by itself."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """Simulated seconds since the start."""
        return self.now

    def wall(self) -> float:
        """The same, as a date."""
        return START_WALL + self.now

    def sleep(self, seconds: float) -> None:
        """Time passes for everybody."""
        self.now += max(0.0, seconds)


class _Jumping(selectors.SelectSelector):
    """Where an event loop would wait for its sockets: nothing comes from outside, so the time is over at once."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Raises InternalError where everybody waits for something that cannot come."""
        if timeout is None:
            raise InternalError("The simulation stands still: everybody waits for nothing.")
        self._clock.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop by a virtual clock. Sockets, threads and signals are not for it."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(_Jumping(clock))
        self._virtual = clock

    def time(self) -> float:
        """Simulated seconds."""
        return self._virtual.now


def run_virtual(main: Coroutine[Any, Any, _ResultT], clock: VirtualClock) -> _ResultT:
    """Run `main` to its end in simulated time."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        return runner.run(main)
