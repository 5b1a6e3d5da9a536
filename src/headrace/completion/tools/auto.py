"""Calls in free text: what is no call, or no good one, is text, and nothing is lost.

A call is certain when it is complete and names a tool that was offered, so here it is told whole.
"""

import re
from collections.abc import Container
from enum import Enum

from headrace.completion.pieces import CallArguments, CallBegun, Piece, Said, held_length
from headrace.completion.tools.syntax import Block, Call, Failed, Syntax


class _Place(Enum):
    START = "start"
    """Nothing but white space and calls so far: a bare call may begin."""
    TEXT = "text"
    BLOCK = "block"


class AutoReader:
    """One answer. White space before a first call and behind every call is no text."""

    def __init__(self, syntax: Syntax, names: Container[str], *, max_calls: int | None) -> None:
        self._syntax = syntax
        self._names = names
        self._max_calls = max_calls
        self._mark = re.compile("|".join(map(re.escape, syntax.marks)) or "(?!)")
        self._num_calls = 0
        self._place = _Place.START
        self._buffer = ""
        self._block: Block | None = None
        self._lead = ""
        """What was skipped before the block, said after all where it is none."""

    @property
    def is_full(self) -> bool:
        return self._max_calls is not None and self._num_calls >= self._max_calls

    def feed(self, text: str) -> list[Piece]:
        self._buffer += text
        return self._run(is_end=False)

    def flush(self) -> list[Piece]:
        return self._run(is_end=True)

    def _run(self, *, is_end: bool) -> list[Piece]:
        pieces: list[Piece] = []
        while self._buffer and not self.is_full:
            if self._block is not None:
                going = self._read_block(self._block, pieces, is_end=is_end)
            elif self._place is _Place.START:
                going = self._start(pieces, is_end=is_end)
            else:
                going = self._read_text(pieces, is_end=is_end)
            if not going:
                break
        return pieces

    def _start(self, pieces: list[Piece], *, is_end: bool) -> bool:
        """Whether what comes next is certain: a block or text."""
        syntax = self._syntax
        skipped = syntax.separators if self._num_calls else ""
        inner = self._buffer.lstrip()
        while inner and inner[0] in skipped:
            inner = inner[1:].lstrip()
        if not inner:
            if is_end and not self._num_calls:
                self._say(self._buffer, pieces)
            return False
        if inner[0] in syntax.bare or self._mark.match(inner):
            lead = self._buffer[: len(self._buffer) - len(inner)]
            self._begin(inner)
            self._lead = lead.strip() if self._num_calls else lead
            return True
        if not is_end and any(mark.startswith(inner) for mark in syntax.marks):
            return False
        if self._num_calls:
            self._buffer = self._buffer.lstrip()
        self._place = _Place.TEXT
        return True

    def _read_text(self, pieces: list[Piece], *, is_end: bool) -> bool:
        buffer = self._buffer
        match = self._mark.search(buffer)
        if match is not None:
            self._say(buffer[: match.start()], pieces)
            self._begin(buffer[match.start() :])
            return True
        held = 0 if is_end else held_length(buffer, self._syntax.marks)
        self._say(buffer[: len(buffer) - held], pieces)
        self._buffer = buffer[len(buffer) - held :]
        return False

    def _read_block(self, block: Block, pieces: list[Piece], *, is_end: bool) -> bool:
        found = block.read(self._buffer, is_end=is_end)
        if found is None:
            return False
        self._block = None
        if isinstance(found, Failed):
            self._say(self._lead + self._buffer[: found.end], pieces)
            self._place = _Place.TEXT
        else:
            for call in found.calls:
                self._tell(call, pieces)
            self._place = _Place.START
        self._buffer = self._buffer[found.end :]
        return True

    def _begin(self, text: str) -> None:
        self._buffer = text
        self._lead = ""
        self._block = self._syntax.block(self._names)

    def _tell(self, call: Call, pieces: list[Piece]) -> None:
        if not self.is_full:
            self._num_calls += 1
            pieces += (CallBegun(call.name), CallArguments(call.arguments))

    def _say(self, text: str, pieces: list[Piece]) -> None:
        if text:
            pieces.append(Said(text))
