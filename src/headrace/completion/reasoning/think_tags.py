"""`<think>…</think>` before the answer: DeepSeek R1, Qwen 3 and others.

Only an answer that begins with the tag begins with reasoning, unless the prompt has opened it already. White
space around reasoning, and between it and the answer, is neither.
"""

from enum import Enum
from typing import Final

from headrace.completion.pieces import Piece, Said, Thought, held_length

OPEN: Final = "<think>"
CLOSE: Final = "</think>"


class _Place(Enum):
    START = "start"
    BEGINNING = "beginning"
    """Inside, with nothing but white space so far."""
    INSIDE = "inside"
    BEHIND = "behind"
    ANSWER = "answer"


class ThinkTags:
    """One answer."""

    def __init__(self, *, is_open: bool) -> None:
        self._place = _Place.BEGINNING if is_open else _Place.START
        self._buffer = ""

    @property
    def is_full(self) -> bool:
        return False

    @property
    def is_thinking(self) -> bool:
        """What comes next is reasoning, as far as one can tell."""
        return self._place in (_Place.BEGINNING, _Place.INSIDE)

    def feed(self, text: str) -> list[Piece]:
        self._buffer += text
        pieces: list[Piece] = []
        while self._buffer and self._advance(pieces):
            pass
        return pieces

    def flush(self) -> list[Piece]:
        rest, self._buffer = self._buffer, ""
        if self.is_thinking:
            rest = rest.rstrip()
            return [Thought(rest)] if rest else []
        return [Said(rest)] if rest and self._place is not _Place.BEHIND else []

    def _advance(self, pieces: list[Piece]) -> bool:
        match self._place:
            case _Place.START:
                return self._start()
            case _Place.BEGINNING | _Place.BEHIND:
                self._buffer = self._buffer.lstrip()
                if self._buffer:
                    is_inside = self._place is _Place.BEGINNING
                    self._place = _Place.INSIDE if is_inside else _Place.ANSWER
                return bool(self._buffer)
            case _Place.INSIDE:
                return self._inside(pieces)
            case _Place.ANSWER:
                pieces.append(Said(self._buffer))
                self._buffer = ""
                return False

    def _start(self) -> bool:
        inner = self._buffer.lstrip()
        if inner.startswith(OPEN):
            self._buffer = inner[len(OPEN) :]
            self._place = _Place.BEGINNING
        elif OPEN.startswith(inner):
            return False
        else:
            self._place = _Place.ANSWER
        return True

    def _inside(self, pieces: list[Piece]) -> bool:
        thought, tag, rest = self._buffer.partition(CLOSE)
        if not tag:
            # Nor is white space certain: it may be the last before the tag.
            held = held_length(self._buffer, (CLOSE,))
            held = len(self._buffer) - len(self._buffer[: len(self._buffer) - held].rstrip())
            thought, rest = (
                self._buffer[: len(self._buffer) - held],
                self._buffer[-held or len(self._buffer) :],
            )
        thought = thought.rstrip()
        if thought:
            pieces.append(Thought(thought))
        self._buffer = rest
        if tag:
            self._place = _Place.BEHIND
        return bool(tag)
