"""The only reader of time. Everything else is handed a `Clock`."""

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks: one that never jumps, for durations, and one that people read."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary point; the same point for every process of this machine."""
        ...

    def wall(self) -> float:
        """Seconds since the Unix epoch."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let this thread wait."""
        ...


class SystemClock:
    """The operating system's clocks (CLOCK_MONOTONIC is shared by all processes on Linux)."""

    # The functions themselves: a step reads the time seven times.
    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)
    sleep = staticmethod(time.sleep)


class WorkClock(SystemClock):
    """`monotonic` is processor time of the thread that asks: what others do meanwhile, and waiting, do not count."""

    monotonic = staticmethod(time.thread_time)
