"""Stop strings, and stop patterns beside them, over a stream of text.

Aho and Corasick, "Efficient string matching" (1975): one pass for all strings. The automaton's state is
the longest suffix of the text so far that begins some stop string, and that suffix is exactly what must be
held back: less would leak, more would only be late.
"""

import re
from collections import deque
from collections.abc import Iterable

from msgspec import Struct

from headrace.completion.stop_patterns import Found, PatternSearch
from headrace.preprocess.patterns import StopPatterns


class StopStrings:
    """The automaton of a set of strings. Immutable: the sequences of a request share one."""

    def __init__(self, strings: Iterable[str]) -> None:
        self.strings = tuple(filter(None, strings))
        self.next: list[dict[str, int]] = [{}]
        self.depth = [0]
        self.longest = [0]
        """By state: length of the longest stop string that ends here, 0 for none."""
        self.fallback = [0]
        for string in self.strings:
            self._insert(string)
        self._link()
        first = "".join(map(re.escape, self.next[0]))
        self.first = re.compile(f"[{first}]" if first else "(?!)", re.DOTALL)

    def advance(self, state: int, character: str) -> int:
        """The state after one more character."""
        while state and character not in self.next[state]:
            state = self.fallback[state]
        return self.next[state].get(character, 0)

    def _insert(self, string: str) -> None:
        state = 0
        for character in string:
            following = self.next[state].get(character)
            if following is None:
                following = len(self.next)
                self.next[state][character] = following
                self.next.append({})
                self.depth.append(self.depth[state] + 1)
                self.longest.append(0)
                self.fallback.append(0)
            state = following
        self.longest[state] = len(string)

    def _link(self) -> None:
        """Fallbacks breadth first: each state's is the longest proper suffix that is a state too."""
        waiting = deque(self.next[0].values())
        while waiting:
            state = waiting.popleft()
            fallback = self.fallback[state]
            self.longest[state] = max(self.longest[state], self.longest[fallback])
            for character, following in self.next[state].items():
                self.fallback[following] = self.advance(fallback, character)
                waiting.append(following)


class Passed(Struct, frozen=True):
    """What a piece of text lets out."""

    text: str
    stop: str | None = None
    """The stop string or pattern that this piece completed."""


class StringSearch:
    """One stream's search for strings."""

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        self._state = 0

    @property
    def num_held(self) -> int:
        """Characters at the end of the text so far that a stop may begin with."""
        return self._stops.depth[self._state]

    def scan(self, text: str) -> Found | None:
        """The first stop to be completed; of several at once, the longest."""
        stops, state, place = self._stops, self._state, 0
        while place < len(text):
            if state == 0:
                match = stops.first.search(text, place)
                if match is None:
                    break
                place = match.start()
            state = stops.advance(state, text[place])
            place += 1
            if stops.longest[state]:
                return Found(place, stops.longest[state])
        self._state = state
        return None


class Stops:
    """What ends the texts of a request. Immutable."""

    def __init__(self, strings: Iterable[str] = (), patterns: Iterable[str] = ()) -> None:
        """Raises PatternError."""
        self.strings = StopStrings(strings)
        self.patterns = StopPatterns(patterns)

    def __bool__(self) -> bool:
        return bool(self.strings.strings or self.patterns.patterns)


class StopMatcher:
    """One stream. The first stop to be completed ends it; of several at once, the longest."""

    def __init__(self, stops: Stops, *, include_stop: bool = False) -> None:
        searches = (
            StringSearch(stops.strings) if stops.strings.strings else None,
            PatternSearch(stops.patterns) if stops.patterns.patterns else None,
        )
        self._searches = tuple(one for one in searches if one is not None)
        self._include_stop = include_stop
        self._held = ""

    def feed(self, text: str) -> Passed:
        """What may be shown now. After a match, nothing more may be fed."""
        found = [one for search in self._searches if (one := search.scan(text)) is not None]
        if found:
            return self._end(text, min(found, key=lambda one: (one.end, -one.length)))
        whole = self._held + text
        cut = len(whole) - max((search.num_held for search in self._searches), default=0)
        self._held = whole[cut:]
        return Passed(whole[:cut])

    def flush(self) -> str:
        """The end of the stream: what was held is text after all."""
        held, self._held = self._held, ""
        return held

    def _end(self, text: str, found: Found) -> Passed:
        whole, self._held = self._held + text[: found.end], ""
        cut = len(whole) - found.length
        return Passed(whole if self._include_stop else whole[:cut], found.pattern or whole[cut:])
