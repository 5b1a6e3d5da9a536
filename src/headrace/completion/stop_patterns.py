"""Stop patterns over a stream of text.

The automaton's states are alive with the place where their match began; of two that meet, the earlier one
stays. What may still become a match is held back, and never more than a window of it.
"""

from typing import Final

from msgspec import Struct

from headrace.preprocess.patterns import StopPatterns

#: Characters of the longest match, which is also the most that is held back.
WINDOW: Final = 1024


class Found(Struct, frozen=True):
    """A stop in a piece of text."""

    end: int
    """Characters of the piece up to its end."""
    length: int
    """Its characters, those of earlier pieces included."""
    pattern: str | None = None
    """What it matches; None for a string, which is itself."""


class PatternSearch:
    """One stream's search for patterns."""

    def __init__(self, patterns: StopPatterns) -> None:
        self._patterns = patterns
        self._place = 0
        self._alive: dict[int, int] = {}
        """State → where its match began, the earliest first."""

    @property
    def num_held(self) -> int:
        """Characters at the end of the text so far that a match may begin with."""
        return self._place - next(iter(self._alive.values()), self._place)

    def scan(self, text: str) -> Found | None:
        """The first match to be completed; of several at once, the longest."""
        patterns, first = self._patterns, self._place
        for character in text:
            self._advance(patterns.taking(character))
            for state, start in self._alive.items():
                if state in patterns.last:
                    return Found(self._place - first, self._place - start, patterns.last[state])
        return None

    def _advance(self, taken: frozenset[int]) -> None:
        start, patterns = self._place, self._patterns
        self._place += 1
        alive: dict[int, int] = {}
        if taken:
            for state, began in self._alive.items():
                if start - began < WINDOW:
                    for following in patterns.follow[state] & taken:
                        alive.setdefault(following, began)
            for following in patterns.first & taken:
                alive.setdefault(following, start)
        self._alive = alive
