"""`[TOOL_CALLS]` and then a list of JSON objects, or, in newer models, `name[ARGS]{…}` for each call."""

import re
from collections.abc import Container
from typing import Final

from headrace.completion.tools.json_calls import JsonSpan, read_arguments, read_calls
from headrace.completion.tools.syntax import Block, Call, Failed, Found

MARK: Final = "[TOOL_CALLS]"
#: A name, perhaps an id, perhaps the mark before arguments; then their first bracket. Every part is bounded,
#: so that nothing longer than this can become one.
_HEAD: Final = re.compile(
    r"([\w.:/-]{1,128})\s{0,16}(?:\[CALL_ID\][\w-]{0,64})?\s{0,16}(?:\[ARGS\])?\s{0,16}(?=\{)"
)
_MAX_HEAD: Final = 300
_JSON: Final = re.compile(r"\[\s{0,16}\{|\{")
_FIRST: Final = re.compile(r"[\[\w.:/-]")


class Mistral:
    """The syntax."""

    marks = (MARK,)
    bare = ""
    separators = ""

    def block(self, names: Container[str]) -> Block:
        return _Block(names)


class _Block:
    """The mark and what it announces."""

    def __init__(self, names: Container[str]) -> None:
        self._names = names
        self._name: str | None = None
        self._start = 0
        self._span: JsonSpan | None = None

    def read(self, text: str, *, is_end: bool) -> Found | Failed | None:
        if self._span is None:
            failed = self._read_head(text, is_end=is_end)
            if failed is not None or self._span is None:
                return failed
        end = self._span.find_end(text)
        if end is None:
            return Failed(self._span.place) if self._span.is_broken or is_end else None
        inner = text[self._start : end]
        if self._name is None:
            calls = read_calls(inner, self._names)
            return Failed(end) if calls is None else Found(calls, end)
        arguments = read_arguments(inner)
        if arguments is None or self._name not in self._names:
            return Failed(end)
        return Found((Call(self._name, arguments),), end)

    def _read_head(self, text: str, *, is_end: bool) -> Failed | None:
        inner = text[len(MARK) :].lstrip()
        skipped = len(text) - len(inner)
        if _JSON.match(inner):
            self._start = skipped
        elif match := _HEAD.match(inner):
            self._name, self._start = match[1], skipped + match.end()
        elif is_end or len(inner) > _MAX_HEAD or (inner and not _FIRST.match(inner)):
            return Failed(len(MARK))
        else:
            return None
        self._span = JsonSpan(self._start)
        return None
