"""Whether a replica's KV events can be believed, found by trying: what it was sent must be told as cached soon after.

Wrong block sizes, other tokens than ours, salts that are not told, a port that nobody publishes at: each would make every prompt
look uncached, and routing by it worse than guessing. So events count only once they have been right, and no more once
they have been wrong several times in a row.
"""

from enum import StrEnum
from typing import Final

from headrace.fleet.gateway.prefix.token_chain import TokenPrompt

#: Seconds from an answer to the time when its prompt must have been told.
PATIENCE: Final = 2.0
MAX_FAILURES: Final = 3
#: Seconds between two checks: of a replica that is believed, and of one that failed.
_PERIOD: Final = 10.0
_PERIOD_FAILED: Final = 60.0


class Standing(StrEnum):
    """Of one replica's events."""

    UNPROVEN = "unproven"
    TRUSTED = "trusted"
    FAILED = "failed"


class Trust:
    """Checks one prompt at a time."""

    def __init__(self) -> None:
        self.standing = Standing.UNPROVEN
        self.num_failures = 0
        """Failed checks in a row."""
        self._pending: tuple[TokenPrompt, str] | None = None
        self._due = 0.0
        self._next = 0.0

    def wants(self, now: float) -> bool:
        """The next prompt should be a check: it is worth finding out its tokens."""
        return self._pending is None and now >= self._next

    def note_answered(self, prompt: TokenPrompt, model: str, now: float) -> None:
        """The replica has computed this prompt."""
        if self.wants(now):
            self._pending, self._due = (prompt, model), now + PATIENCE

    def due(self, now: float) -> tuple[TokenPrompt, str] | None:
        """A prompt, and its model, that must be in the index now."""
        return self._pending if self._pending is not None and now >= self._due else None

    def note_checked(self, found: bool, now: float) -> None:
        """The outcome of what was due."""
        self._pending = None
        if found:
            self.standing, self.num_failures = Standing.TRUSTED, 0
        else:
            self.num_failures += 1
            if self.num_failures >= MAX_FAILURES:
                self.standing = Standing.FAILED
        if self.standing is Standing.FAILED:
            self._next = now + _PERIOD_FAILED
        else:
            self._next = now + (_PERIOD if self.num_failures == 0 else 0.0)
