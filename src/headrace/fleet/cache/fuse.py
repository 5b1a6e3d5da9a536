"""Leaves something alone for a while after it has failed some times in a row, so that a dead one costs nothing."""

from typing import Final

from headrace.core.clock import Clock

_FAILURES: Final = 3
_PAUSE: Final = 5.0


class Fuse:
    """Ask `is_blown` before, say `held` or `failed` after."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures = 0
        self._blown_until = 0.0

    @property
    def is_blown(self) -> bool:
        """It should not be asked now."""
        return self._clock.monotonic() < self._blown_until

    def held(self) -> None:
        """It answered."""
        self._failures = 0

    def failed(self) -> None:
        """It did not. After a pause one failure is enough to leave it alone again."""
        self._failures += 1
        if self._failures >= _FAILURES:
            self._blown_until = self._clock.monotonic() + _PAUSE
