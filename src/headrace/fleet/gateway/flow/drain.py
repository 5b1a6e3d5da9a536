"""How fast a queue moves, and what that means for one who is sent away."""

from collections import deque
from typing import Final

#: Seconds over which starts are counted.
WINDOW: Final = 10.0
#: The longest wait that is ever advised.
MAX_RETRY_AFTER: Final = 120.0
#: Within the first second fewer starts than these say nothing of the pace.
MIN_STARTS: Final = 8
#: Starts that are kept; more than that many in the window give the rate of the last ones.
MAX_STARTS: Final = 1024


class DrainRate:
    """Starts of the last seconds."""

    def __init__(self) -> None:
        self._starts: deque[float] = deque(maxlen=MAX_STARTS)

    def note_start(self, now: float) -> None:
        """A request has left the queue for a replica."""
        self._starts.append(now)

    def rate(self, now: float) -> float | None:
        """Starts per second; None where there were too few lately to say."""
        while self._starts and self._starts[0] < now - WINDOW:
            self._starts.popleft()
        if not self._starts:
            return None
        if now - self._starts[0] < 1.0 and len(self._starts) < MIN_STARTS:
            return None
        return len(self._starts) / max(1.0, now - self._starts[0])

    def wait(self, num_ahead: int, now: float) -> float | None:
        """Seconds until that many requests have started; None: not known."""
        rate = self.rate(now)
        return None if rate is None else num_ahead / rate

    def retry_after(self, num_ahead: int, now: float) -> float:
        """Seconds to tell a client: the wait at the pace of the last seconds, within bounds."""
        wait = self.wait(num_ahead, now)
        return WINDOW if wait is None else min(MAX_RETRY_AFTER, max(1.0, wait))
