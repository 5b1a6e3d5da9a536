"""`{"name": …, "parameters": {…}}` with nothing around it: Llama 3, which writes `;` between calls.

Only an answer that begins like this is a call: JSON further on in a text is text.
"""

from collections.abc import Container
from typing import Final

from headrace.completion.tools.json_calls import JsonSpan, read_calls
from headrace.completion.tools.syntax import Block, Failed, Found

PYTHON_TAG: Final = "<|python_tag|>"


class BareJson:
    """The syntax."""

    marks = (PYTHON_TAG,)
    bare = "{["
    separators = ";,"

    def block(self, names: Container[str]) -> Block:
        return _Block(names)


class _Block:
    """One object, or one list of them."""

    def __init__(self, names: Container[str]) -> None:
        self._names = names
        self._span: JsonSpan | None = None
        self._start = 0

    def read(self, text: str, *, is_end: bool) -> Found | Failed | None:
        if self._span is None:
            lead = len(PYTHON_TAG) if text.startswith(PYTHON_TAG) else 0
            inner = text[lead:].lstrip()
            if not inner and not is_end:
                return None
            if not inner or inner[0] not in BareJson.bare:
                return Failed(max(1, lead))
            self._start = len(text) - len(inner)
            self._span = JsonSpan(self._start)
        end = self._span.find_end(text)
        if end is None:
            return Failed(self._span.place) if self._span.is_broken or is_end else None
        calls = read_calls(text[self._start : end], self._names)
        return Failed(end) if calls is None else Found(calls, end)
