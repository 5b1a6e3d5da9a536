"""`<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen, SmolLM3 and others.

SmolLM2 writes a list of such objects into one pair of tags; both forms are read.
"""

from collections.abc import Container
from typing import Final

from headrace.completion.tools.json_calls import JsonSpan, read_calls
from headrace.completion.tools.syntax import Block, Call, Failed, Found

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"


class TaggedJson:
    """The syntax."""

    marks = (OPEN,)
    bare = ""
    separators = ""

    def block(self, names: Container[str]) -> Block:
        return _Block(names)


class _Block:
    """One pair of tags. The closing one may be missing at the end, where a stop token stands for it."""

    def __init__(self, names: Container[str]) -> None:
        self._names = names
        self._span: JsonSpan | None = None
        self._calls: tuple[Call, ...] | None = None
        self._end = 0

    def read(self, text: str, *, is_end: bool) -> Found | Failed | None:
        if self._calls is None:
            failed = self._read_json(text, is_end=is_end)
            if failed is not None or self._calls is None:
                return failed
        rest = text[self._end :]
        closing = rest.lstrip()
        if closing.startswith(CLOSE):
            return Found(self._calls, len(text) - len(closing) + len(CLOSE))
        if is_end or not CLOSE.startswith(closing):
            return Found(self._calls, self._end)
        return None

    def _read_json(self, text: str, *, is_end: bool) -> Failed | None:
        if self._span is None:
            inner = text[len(OPEN) :].lstrip()
            if inner and inner[0] in "{[":
                self._span = JsonSpan(len(text) - len(inner))
            elif inner or is_end:
                return Failed(len(OPEN))
            else:
                return None
        end = self._span.find_end(text)
        if end is None:
            return Failed(self._span.place) if self._span.is_broken or is_end else None
        start = len(text) - len(text[len(OPEN) :].lstrip())
        self._calls, self._end = read_calls(text[start:end], self._names), end
        return Failed(end) if self._calls is None else None
