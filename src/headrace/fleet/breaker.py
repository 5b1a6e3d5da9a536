"""A circuit breaker: requests that fail in a row stop further ones, until a single one has shown that it is over.

A pure state machine: time is given to it.
"""

from enum import StrEnum


class Circuit(StrEnum):
    """States of a breaker."""

    CLOSED = "closed"
    """Requests flow."""
    OPEN = "open"
    """None do."""
    HALF_OPEN = "half_open"
    """One may, and decides."""


class Breaker:
    """One replica's. Each time that its trial fails it stays open twice as long, up to `MAX_FACTOR` times as long."""

    MAX_FACTOR = 10

    def __init__(self, max_failures: int, open_seconds: float) -> None:
        self.max_failures = max_failures
        self.open_seconds = open_seconds
        self._num_failures = 0
        self._factor = 1
        self._open_until = 0.0
        self._trial_until = 0.0
        self._is_open = False
        self._doubted: set[int] = set()
        """Requests that have counted and may have been at fault themselves."""

    def state(self, now: float) -> Circuit:
        """As it is now. HALF_OPEN only while its one request has not been given out."""
        if not self._is_open:
            return Circuit.CLOSED
        if now < self._open_until or now < self._trial_until:
            return Circuit.OPEN
        return Circuit.HALF_OPEN

    def note_sent(self, now: float) -> None:
        """A request is sent. If the circuit was half open, it is the trial, and no other goes for a while."""
        if self.state(now) is Circuit.HALF_OPEN:
            self._trial_until = now + self.open_seconds

    def note_success(self) -> None:
        """A request succeeded: the circuit is closed."""
        self._num_failures = 0
        self._factor = 1
        self._is_open = False
        self._trial_until = 0.0
        self._doubted.clear()

    def note_failure(self, now: float, request: int | None = None) -> bool:
        """A request failed through the replica's fault; or, with `request`, perhaps through its own: then one of that number
        counts once, however often it is sent, until another one succeeds. True if it opens a closed circuit.
        """
        if request is not None:
            if request in self._doubted:
                return False
            if len(self._doubted) < self.max_failures:  # those are enough to open it
                self._doubted.add(request)
        self._num_failures += 1
        if self._is_open:
            if now < self._open_until:
                return False  # sent before it opened, or because there was no other replica: nothing new
            self._factor = min(self.MAX_FACTOR, self._factor * 2)
        elif self._num_failures < self.max_failures:
            return False
        was_closed = not self._is_open
        self._is_open = True
        self._trial_until = 0.0
        self._open_until = now + self.open_seconds * self._factor
        return was_closed

    def note_alive(self) -> None:
        """A probe after a failed one succeeded: the replica is a new one, and is tried at once."""
        if self._is_open:
            self._open_until = 0.0
            self._trial_until = 0.0
