"""Calls that a grammar forces: their text is known but for names and arguments, so they are told at once."""

from enum import Enum

from headrace.completion.pieces import CallArguments, CallBegun, Piece, Said
from headrace.completion.tools.json_calls import JsonSpan
from headrace.preprocess.tools.frames import Frame


class _State(Enum):
    OPENING = "opening"
    HEAD = "head"
    ARGUMENTS = "arguments"
    TAIL = "tail"
    NEXT = "next"
    TEXT = "text"
    """This is not what was forced: whatever it is, it is not lost."""


class ForcedReader:
    """One answer in a frame. A name comes with the text that ends it, arguments as they are written."""

    def __init__(self, frame: Frame, names: tuple[str, ...], *, max_calls: int | None) -> None:
        self._frame = frame
        self._heads = {frame.begin(name): name for name in names}
        self._max_calls = max_calls
        self._state = _State.OPENING
        self._buffer = ""
        self._num_calls = 0
        self._span = JsonSpan(0)
        self._told = 0

    @property
    def is_full(self) -> bool:
        """Never: the grammar ends the answer, with what closes it."""
        return False

    def feed(self, text: str) -> list[Piece]:
        self._buffer += text
        pieces: list[Piece] = []
        while self._buffer and self._advance(pieces):
            pass
        return pieces

    def flush(self) -> list[Piece]:
        pieces: list[Piece] = []
        if self._state in (_State.OPENING, _State.HEAD) and not self._num_calls and self._buffer:
            pieces.append(Said(self._buffer))
        self._buffer = ""
        return pieces

    def _advance(self, pieces: list[Piece]) -> bool:
        match self._state:
            case _State.OPENING:
                return self._pass(self._frame.opening, _State.HEAD)
            case _State.HEAD:
                return self._head(pieces)
            case _State.ARGUMENTS:
                return self._arguments(pieces)
            case _State.TAIL:
                return self._pass(self._frame.tail, _State.NEXT)
            case _State.NEXT:
                return self._next()
            case _State.TEXT:
                pieces.append(Said(self._buffer))
                self._buffer = ""
                return False

    def _pass(self, literal: str, state: _State) -> bool:
        """Over fixed text."""
        if self._buffer.startswith(literal):
            self._buffer = self._buffer[len(literal) :]
            self._state = state
            return True
        if literal.startswith(self._buffer):
            return False
        self._state = _State.TEXT
        return True

    def _head(self, pieces: list[Piece]) -> bool:
        buffer = self._buffer
        # A name may begin another one, where nothing stands between it and the arguments.
        heads = [head for head in self._heads if buffer.startswith(head)]
        head = max(heads, key=len, default="")
        if not head or len(buffer) == len(head):
            if not any(head.startswith(buffer) for head in self._heads):
                self._state = _State.TEXT
                return True
            return False
        if any(other.startswith(buffer) for other in self._heads):
            return False
        if self._max_calls is not None and self._num_calls >= self._max_calls:
            self._state = _State.TEXT
            return True
        self._num_calls += 1
        pieces.append(CallBegun(self._heads[head]))
        self._buffer = buffer[len(head) :]
        self._span, self._told = JsonSpan(0), 0
        self._state = _State.ARGUMENTS
        return True

    def _arguments(self, pieces: list[Piece]) -> bool:
        end = self._span.find_end(self._buffer)
        certain = end if end is not None else len(self._buffer)
        if certain > self._told:
            pieces.append(CallArguments(self._buffer[self._told : certain]))
            self._told = certain
        if end is None:
            return False
        self._buffer = self._buffer[end:]
        self._state = _State.TAIL
        return True

    def _next(self) -> bool:
        frame = self._frame
        for literal, state in ((frame.between, _State.HEAD), (frame.closing, _State.TEXT)):
            if literal and self._buffer.startswith(literal):
                self._buffer = self._buffer[len(literal) :]
                self._state = state
                return True
            if literal and literal.startswith(self._buffer):
                return False
        self._state = _State.TEXT if frame.between else _State.HEAD
        return True
