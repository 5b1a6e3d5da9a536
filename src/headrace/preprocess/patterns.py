"""Stop patterns: a regular expression → an automaton that takes one character at a time.

Glushkov, "The abstract theory of automata" (1961): one state per character of the pattern, no empty steps.
Nothing goes back, so a text costs a bounded number of steps per character, whatever pattern and text are.
What needs to look around (anchors, back references, look-ahead) is refused.
"""

import re
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from headrace.api.fields import MAX_STOP_PATTERN_CHARS

#: Bound of one pattern.
MAX_DEPTH: Final = 32
#: Bounds of all patterns of a request: states, and pairs of states that may follow each other.
MAX_STATES: Final = 256
MAX_STEPS: Final = 1024
#: Characters whose states are kept once they are known.
_MAX_KEPT: Final = 128

_SETS: Final = frozenset("dDwWsSntrfv")
_HEX: Final = {"x": 2, "u": 4}
_REPEATS: Final = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_COUNTED: Final = re.compile(r"\{([0-9]{1,4})(,([0-9]{0,4}))?\}")
_DOUBTFUL: Final = re.compile(r"\[|--|&&|~~|\|\|")


class PatternError(ValueError):
    """What is wrong with a pattern, as the end of a sentence."""


class _Char(Struct, frozen=True):
    source: str


class _Chain(Struct, frozen=True):
    parts: "tuple[_Node, ...]"


class _Either(Struct, frozen=True):
    parts: "tuple[_Node, ...]"


class _Repeat(Struct, frozen=True):
    part: "_Node"
    least: int
    most: int | None


_Node = _Char | _Chain | _Either | _Repeat


class _Ends(Struct, frozen=True):
    """Of a part of a pattern: whether it may be empty, and its first and last states."""

    is_empty: bool
    first: frozenset[int]
    last: frozenset[int]


class StopPatterns:
    """The automaton of several patterns. The sequences of a request share one."""

    def __init__(self, patterns: Iterable[str]) -> None:
        """Raises PatternError."""
        self.patterns = tuple(patterns)
        self.first: frozenset[int] = frozenset()
        """States that a match begins with."""
        self.follow: list[frozenset[int]] = []
        """By state: those that may come next."""
        self.last: dict[int, str] = {}
        """States that complete a pattern, and which."""
        self._chars: list[re.Pattern[str]] = []
        self._taking: dict[str, frozenset[int]] = {}
        for pattern in self.patterns:
            ends = self._build(_Parser(pattern).parse())
            if ends.is_empty:
                raise PatternError("matches the empty text")
            self.first |= ends.first
            self.last |= dict.fromkeys(ends.last, pattern)

    def taking(self, character: str) -> frozenset[int]:
        """The states that this character leads into."""
        states = self._taking.get(character)
        if states is None:
            states = frozenset(n for n, one in enumerate(self._chars) if one.fullmatch(character))
            if len(self._taking) < _MAX_KEPT:
                self._taking[character] = states
        return states

    def _build(self, node: _Node) -> _Ends:
        match node:
            case _Char(source):
                return self._state(source)
            case _Chain(parts):
                return self._chain(self._build(part) for part in parts)
            case _Either(parts):
                built = [self._build(part) for part in parts]
                return _Ends(
                    any(ends.is_empty for ends in built),
                    frozenset().union(*(ends.first for ends in built)),
                    frozenset().union(*(ends.last for ends in built)),
                )
            case _Repeat(part, least, most):
                return self._chain(self._copies(part, least, most))

    def _copies(self, part: _Node, least: int, most: int | None) -> Iterable[_Ends]:
        count = max(least, 1) if most is None else most
        for number in range(count):
            ends = self._build(part)
            if most is None and number == count - 1:
                self._link(ends.last, ends.first)
            yield _Ends(ends.is_empty or number >= least, ends.first, ends.last)

    def _chain(self, parts: Iterable[_Ends]) -> _Ends:
        whole = _Ends(True, frozenset(), frozenset())
        for ends in parts:
            self._link(whole.last, ends.first)
            whole = _Ends(
                whole.is_empty and ends.is_empty,
                whole.first | ends.first if whole.is_empty else whole.first,
                whole.last | ends.last if ends.is_empty else ends.last,
            )
        return whole

    def _state(self, source: str) -> _Ends:
        if len(self._chars) >= MAX_STATES:
            raise PatternError(f"is too large: more than {MAX_STATES} states")
        try:
            self._chars.append(re.compile(source))
        except re.error as error:
            raise PatternError(f"is not a regular expression: {error.msg}") from None
        self.follow.append(frozenset())
        own = frozenset((len(self._chars) - 1,))
        return _Ends(False, own, own)

    def _link(self, before: frozenset[int], after: frozenset[int]) -> None:
        for state in before:
            self.follow[state] |= after
        if before and sum(map(len, self.follow)) > MAX_STEPS:
            raise PatternError(f"is too large: more than {MAX_STEPS} steps")


class _Parser:
    """Recursive descent. A node for one character keeps its source, which `re` reads."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0
        self._depth = 0

    def parse(self) -> _Node:
        if len(self._text) > MAX_STOP_PATTERN_CHARS:
            raise PatternError(f"has more than {MAX_STOP_PATTERN_CHARS} characters")
        node = self._either()
        if self._place < len(self._text):
            raise PatternError("has a ')' without a '('")
        return node

    def _peek(self) -> str:
        return self._text[self._place : self._place + 1]

    def _either(self) -> _Node:
        parts = [self._chain()]
        while self._peek() == "|":
            self._place += 1
            parts.append(self._chain())
        return parts[0] if len(parts) == 1 else _Either(tuple(parts))

    def _chain(self) -> _Node:
        parts: list[_Node] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeat(self._one()))
        if not parts:
            raise PatternError("has an empty alternative")
        return _Chain(tuple(parts))

    def _repeat(self, node: _Node) -> _Node:
        counted = _COUNTED.match(self._text, self._place)
        if self._peek() in _REPEATS:
            least, most = _REPEATS[self._peek()]
            self._place += 1
        elif counted is not None:
            least = int(counted[1])
            most = least if counted[2] is None else int(counted[3]) if counted[3] else None
            self._place = counted.end()
        else:
            return node
        if most is not None and (most < 1 or most < least):
            raise PatternError("has a repeat of nothing")
        if self._peek() == "?":  # the shortest match ends a text anyway
            self._place += 1
        if self._peek() in ("*", "+", "?", "{"):
            raise PatternError("repeats a repeat; put it into a group")
        return _Repeat(node, least, most)

    def _one(self) -> _Node:
        character = self._peek()
        if character == "(":
            return self._group()
        if character == "[":
            return self._set()
        if character == "\\":
            return _Char(self._escape())
        if character in "^$*+?{":
            raise PatternError(f"has a '{character}' where none may stand; escape it")
        self._place += 1
        return _Char("." if character == "." else re.escape(character))

    def _group(self) -> _Node:
        self._place += 1
        if self._peek() == "?":
            if not self._text.startswith("?:", self._place):
                raise PatternError("has a group that is not plain or '(?:'")
            self._place += 2
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise PatternError(f"nests groups more than {MAX_DEPTH} deep")
        node = self._either()
        if self._peek() != ")":
            raise PatternError("has a '(' without a ')'")
        self._place += 1
        self._depth -= 1
        return node

    def _set(self) -> _Node:
        first = self._place
        self._place += 2 if self._text.startswith("[^", first) else 1
        body = self._place
        while self._peek() != "]" or self._place == body:
            if not self._peek():
                raise PatternError("has a '[' without a ']'")
            if self._peek() == "\\":
                self._escape()
            else:
                self._place += 1
        if _DOUBTFUL.search(re.sub(r"\\.", "", self._text[body : self._place])):
            raise PatternError("has a '[' or a doubled sign in a set; escape it")
        self._place += 1
        return _Char(self._text[first : self._place])

    def _escape(self) -> str:
        """The source of an escaped character, which is passed."""
        first = self._place
        character = self._text[first + 1 : first + 2]
        length = 2 + _HEX.get(character, 0)
        is_plain = bool(character) and not (character.isascii() and character.isalnum())
        if not (is_plain or character in _SETS or character in _HEX) or not character:
            raise PatternError(f"has '\\{character}', which is not taken")
        self._place = first + length
        source = self._text[first : self._place]
        return source if not is_plain else re.escape(character)
