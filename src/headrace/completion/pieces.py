"""What a stretch of an answer's text turns out to be."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class Said(Struct, frozen=True):
    """Text for the user."""

    text: str


class Thought(Struct, frozen=True):
    """Reasoning before the answer."""

    text: str


class CallBegun(Struct, frozen=True):
    """A call of a tool; its arguments follow."""

    name: str


class CallArguments(Struct, frozen=True):
    """More of the JSON text of the arguments of the call that began last."""

    text: str


Piece = Said | Thought | CallBegun | CallArguments


class PieceReader(Protocol):
    """A pure state machine over a stream of text.

    What it gives depends on the text alone and not on how it is cut: neighbours of one kind joined, the
    pieces of every cutting, with those of `flush`, are the same.
    """

    @property
    def is_full(self) -> bool:
        """It has read as many calls as it may: what follows is not read any more."""
        ...

    def feed(self, text: str) -> list[Piece]:
        """The pieces that this text makes certain."""
        ...

    def flush(self) -> list[Piece]:
        """The end of the stream: what was held back is decided now."""
        ...


def held_length(text: str, marks: Sequence[str]) -> int:
    """Characters at the end of `text` that may be the beginning of a mark."""
    longest = min(max(map(len, marks), default=0) - 1, len(text))
    for length in range(longest, 0, -1):
        tail = text[-length:]
        if any(mark.startswith(tail) for mark in marks):
            return length
    return 0
