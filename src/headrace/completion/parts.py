"""Deltas → parts in a row: reasoning, text and calls, one after the other, as item- and block-based APIs have them.

A part ends when another one begins, or with the answer. Whatever the deltas' cut: the texts of all parts of
one kind, joined, are what the deltas say of that kind.
"""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from headrace.completion.delta import Delta
from headrace.core.events import TokenLogprobs


class PartKind(StrEnum):
    """What a part is."""

    THOUGHT = "thought"
    TEXT = "text"
    CALL = "call"


class Part:
    """One part, as far as it has come."""

    __slots__ = ("_pieces", "call_id", "kind", "logprobs", "name", "place")

    def __init__(self, kind: PartKind, place: int, call_id: str = "", name: str = "") -> None:
        self.kind = kind
        self.place = place
        """Number within the answer."""
        self.call_id = call_id
        self.name = name
        self.logprobs: list[TokenLogprobs] = []
        """Of a text, where they were asked for."""
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """What is said or thought, or the arguments of the call."""
        return "".join(self._pieces)

    def grow(self, text: str, logprobs: Sequence[TokenLogprobs]) -> None:
        """More of it."""
        self._pieces.append(text)
        self.logprobs += logprobs


class Opened(Struct, frozen=True):
    """A part begins."""

    part: Part


class Grown(Struct, frozen=True):
    """A part has gained this text."""

    part: Part
    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()


class Closed(Struct, frozen=True):
    """A part is complete, or as complete as it will be."""

    part: Part


Step = Opened | Grown | Closed


class Parts:
    """The parts of one choice."""

    def __init__(self) -> None:
        self.all: list[Part] = []
        self._is_open = False

    def push(self, delta: Delta) -> list[Step]:
        """What a delta adds; with its finish, the last part is closed."""
        steps: list[Step] = []
        if delta.thought:
            self._extend(steps, PartKind.THOUGHT, delta.thought)
        if delta.text:
            self._extend(steps, PartKind.TEXT, delta.text, delta.logprobs)
        for call in delta.calls:
            if call.id is not None:
                self._open(steps, PartKind.CALL, call.id, call.name or "")
            if call.arguments:
                self._extend(steps, PartKind.CALL, call.arguments)
        if delta.finish is not None:
            self._close(steps)
        return steps

    def _extend(
        self,
        steps: list[Step],
        kind: PartKind,
        text: str,
        logprobs: tuple[TokenLogprobs, ...] = (),
    ) -> None:
        if not self._is_open or self.all[-1].kind is not kind:
            self._open(steps, kind)
        self.all[-1].grow(text, logprobs)
        steps.append(Grown(self.all[-1], text, logprobs))

    def _open(self, steps: list[Step], kind: PartKind, call_id: str = "", name: str = "") -> None:
        self._close(steps)
        self.all.append(Part(kind, len(self.all), call_id, name))
        self._is_open = True
        steps.append(Opened(self.all[-1]))

    def _close(self, steps: list[Step]) -> None:
        if self._is_open:
            self._is_open = False
            steps.append(Closed(self.all[-1]))
