"""A clock that moves when it is told to."""


class FakeClock:
    """Implements `core.clock.Clock`. Both readings advance together; they start far from zero, so that
    code which takes 0.0 for "never" is caught."""

    def __init__(self, monotonic: float = 1000.0, wall: float = 1_700_000_000.0) -> None:
        self._monotonic = monotonic
        self._wall = wall

    def monotonic(self) -> float:
        return self._monotonic

    def wall(self) -> float:
        return self._wall

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        assert seconds >= 0.0
        self._monotonic += seconds
        self._wall += seconds

    def set_wall(self, seconds: float) -> None:
        """Somebody sets it, forward by so many seconds or back."""
        self._wall += seconds
