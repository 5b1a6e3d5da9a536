"""Harmony, the format of gpt-oss: messages in channels, of which one is for the user.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>
    <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>

`analysis` is reasoning, a message to a function is a call, everything else is said. The prompt ends with
`<|start|>assistant`; `<|return|>` and `<|call|>` are stop tokens and are not in the text as a rule.
"""

import re
from collections.abc import Container
from typing import Final

from headrace.completion.pieces import (
    CallArguments,
    CallBegun,
    Piece,
    Said,
    Thought,
    held_length,
)
from headrace.completion.tools.json_calls import read_arguments

MARKS: Final = (
    "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>",
)  # fmt: skip
_MESSAGE: Final = "<|message|>"
_ENDS: Final = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
_END: Final = re.compile("|".join(map(re.escape, _ENDS)))
_BEGINS: Final = ("<|start|>", "<|channel|>")
_TO: Final = re.compile(r"to=functions\.([\w.:/-]+)")
_CHANNEL: Final = re.compile(r"<\|channel\|>\s*(\w+)")
#: A header is a role, a channel, a recipient and a type.
_MAX_HEADER: Final = 400


class Harmony:
    """One answer."""

    def __init__(self, names: Container[str] = (), *, max_calls: int | None = None) -> None:
        self._names = names
        self._max_calls = max_calls
        self._num_calls = 0
        self._buffer = ""
        self._header: str | None = ""
        """Of the message that is being read; None before and between messages."""
        self._call: str | None = None
        self._is_first = True

    @property
    def is_full(self) -> bool:
        return self._max_calls is not None and self._num_calls >= self._max_calls

    @property
    def is_thinking(self) -> bool:
        """The message that is being read is analysis."""
        return self._header is not None and "analysis" in self._header and self._call is None

    def feed(self, text: str) -> list[Piece]:
        self._buffer += text
        return self._run(is_end=False)

    def flush(self) -> list[Piece]:
        return self._run(is_end=True)

    def _run(self, *, is_end: bool) -> list[Piece]:
        pieces: list[Piece] = []
        if self._is_first and self._buffer:
            if not is_end and any(
                mark.startswith(self._buffer) and mark != self._buffer for mark in _BEGINS
            ):
                return pieces
            self._is_first = False
            # Text without a header is an answer, whatever the model was taught.
            self._header = None if self._buffer.startswith(_BEGINS) else ""
        while self._buffer and not self.is_full:
            if self._header is None:
                going = self._read_header(pieces, is_end=is_end)
            else:
                going = self._read_body(pieces, is_end=is_end)
            if not going:
                break
        return pieces

    def _read_header(self, pieces: list[Piece], *, is_end: bool) -> bool:
        header, mark, rest = self._buffer.partition(_MESSAGE)
        if len(header) > _MAX_HEADER or (is_end and not mark):
            pieces.append(Said(self._buffer[: len(header)]))
            self._buffer, self._header = mark + rest, ""
            return True
        if not mark:
            return False
        channel = _CHANNEL.search(header)
        recipient = _TO.search(header)
        self._header = channel[1] if channel else ""
        name = recipient[1] if recipient else None
        self._call = name if name is not None and name in self._names else None
        self._buffer = rest
        return True

    def _read_body(self, pieces: list[Piece], *, is_end: bool) -> bool:
        match = _END.search(self._buffer)
        if match is None:
            if self._call is None:
                held = 0 if is_end else held_length(self._buffer, _ENDS)
                self._say(self._buffer[: len(self._buffer) - held], pieces)
                self._buffer = self._buffer[len(self._buffer) - held :]
            elif is_end:
                self._tell(self._buffer, pieces)
                self._buffer = ""
            return False
        body = self._buffer[: match.start()]
        if self._call is None:
            self._say(body, pieces)
        else:
            self._tell(body, pieces)
        begins = match[0] in _BEGINS
        self._buffer = self._buffer[match.start() if begins else match.end() :]
        self._header = self._call = None
        return True

    def _say(self, text: str, pieces: list[Piece]) -> None:
        if text:
            pieces.append(Thought(text) if self.is_thinking else Said(text))

    def _tell(self, body: str, pieces: list[Piece]) -> None:
        arguments = read_arguments(body.strip() or "{}")
        if self._call is None or arguments is None:
            pieces.append(Said(body))
            return
        self._num_calls += 1
        pieces += (CallBegun(self._call), CallArguments(arguments))
