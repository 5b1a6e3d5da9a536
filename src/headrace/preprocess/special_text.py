"""Special tokens that users write into their messages.

A chat template marks turns with special tokens. The same characters inside a message are text, or a user
could end his turn and speak for the system. `disarm` breaks them with a mark before the template runs;
the tokenizer then encodes what holds a mark as plain text, the mark removed.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

#: Noncharacters: Unicode guarantees that no text needs them.
MARKS: Final = tuple(map(chr, range(0xFDD0, 0xFDF0)))
_ANY_MARK: Final = re.compile("[\ufdd0-\ufdef]")


class SpecialTokens:
    """Finds the texts of special tokens, leftmost first and the longest at each place.

    A token of one character cannot be broken, so it is left out.
    """

    def __init__(self, contents: Iterable[str]) -> None:
        self._contents = frozenset(content for content in contents if len(content) > 1)
        self._lengths: dict[str, list[int]] = {}
        for content in self._contents:
            lengths = self._lengths.setdefault(content[0], [])
            if len(content) not in lengths:
                lengths.append(len(content))
        for lengths in self._lengths.values():
            lengths.sort(reverse=True)
        first = "".join(map(re.escape, self._lengths))
        self._first = re.compile(f"[{first}]" if first else "(?!)")

    def find(self, text: str, start: int = 0) -> tuple[int, int] | None:
        """[start, end) of the next special token at or after `start`."""
        for match in self._first.finditer(text, start):
            place = match.start()
            for length in self._lengths[text[place]]:
                # At the end of the text the slice may be shorter than `length`.
                content = text[place : place + length]
                if content in self._contents:
                    return place, place + len(content)
        return None

    def disarm(self, value: Any, mark: str) -> Any:
        """`value` with `mark` inside every special token in its texts; the keys of objects too."""
        if isinstance(value, str):
            return self._disarm_text(value, mark)
        if isinstance(value, dict):
            return {self.disarm(key, mark): self.disarm(item, mark) for key, item in value.items()}
        if isinstance(value, list):
            return [self.disarm(item, mark) for item in value]
        return value

    def are_in(self, value: Any) -> bool:
        """Some text in `value` holds a special token."""
        if isinstance(value, str):
            return self.find(value) is not None
        if isinstance(value, dict):
            return any(self.are_in(key) or self.are_in(item) for key, item in value.items())
        if isinstance(value, list):
            return any(map(self.are_in, value))
        return False

    def _disarm_text(self, text: str, mark: str) -> str:
        pieces: list[str] = []
        done = 0
        while found := self.find(text, done):
            start, end = found
            pieces += (text[done : start + 1], mark, text[start + 1 : end])
            done = end
        return "".join([*pieces, text[done:]])


def free_mark(value: Any) -> str | None:
    """A mark that no text in `value` holds; None where all are taken."""
    taken = frozenset(_marks_in(value))
    return next((mark for mark in MARKS if mark not in taken), None)


def _marks_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from _ANY_MARK.findall(value)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _marks_in(key)
            yield from _marks_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from _marks_in(item)
