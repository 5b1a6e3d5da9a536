"""`[name(key="value", …), …]`: Llama 3.2 and 4, and others that write calls as Python.

Only an answer that begins like this is a call. Arguments are literals and named; `**{…}` is read too.
"""

import re
from collections.abc import Container
from typing import Any, Final

import msgspec

from headrace.completion.tools.literals import Cursor, LiteralError, read_value
from headrace.completion.tools.syntax import Block, Call, Failed, Found

#: Outside strings: brackets and quotes; inside: the quotes and escapes.
_OUTSIDE: Final = re.compile(r"[\[\](){}'\"]")
_INSIDE: Final = re.compile(r"[\\'\"]")
_HEAD: Final = re.compile(r"\[\s*(?:[A-Za-z_][\w.:/-]*\s*(?:\(|\Z)|\Z)")
_NAME: Final = re.compile(r"[A-Za-z_][\w.:/-]*")
_START: Final = "<|python_start|>"
_CLOSE: Final = "<|python_end|>"
_MARKS: Final = ("<|python_tag|>", _START)


class Pythonic:
    """The syntax."""

    marks = _MARKS
    bare = "["
    separators = ""

    def block(self, names: Container[str]) -> Block:
        return _Block(names)


class _Block:
    """One list of calls."""

    def __init__(self, names: Container[str]) -> None:
        self._names = names
        self._place = -1
        self._end: int | None = None
        self._depth = 0
        self._quote = ""

    def read(self, text: str, *, is_end: bool) -> Found | Failed | None:
        lead = next((len(mark) for mark in _MARKS if text.startswith(mark)), 0)
        start = len(text) - len(text[lead:].lstrip())
        if start == len(text):
            return Failed(max(1, lead)) if is_end else None
        if not _HEAD.match(text, start):
            return Failed(start + 1)
        if self._end is None:
            self._place = max(self._place, start)
            self._end = self._find_end(text)
        if self._end is None:
            return Failed(len(text)) if is_end else None
        try:
            calls = _read_list(text[start : self._end], self._names)
        except LiteralError:
            return Failed(self._end)
        rest = text[self._end :]
        if text.startswith(_START):
            if rest.startswith(_CLOSE):
                return Found(calls, self._end + len(_CLOSE))
            if _CLOSE.startswith(rest) and not is_end:
                return None
        return Found(calls, self._end)

    def _find_end(self, text: str) -> int | None:
        """Behind the bracket that closes the first one."""
        while True:
            match = (_INSIDE if self._quote else _OUTSIDE).search(text, self._place)
            if match is None:
                self._place = len(text)
                return None
            found = match[0]
            if found == "\\" and match.end() == len(text):
                self._place = match.start()
                return None
            self._place = match.end() + (found == "\\")
            if self._quote:
                self._quote = "" if found == self._quote else self._quote
            elif found in "'\"":
                self._quote = found
            else:
                self._depth += 1 if found in "([{" else -1
                if self._depth <= 0:
                    return self._place


def _read_list(text: str, names: Container[str]) -> tuple[Call, ...]:
    cursor = Cursor(text)
    cursor.need("[")
    calls: list[Call] = []
    while not cursor.at("]"):
        calls.append(_read_call(cursor, names))
        if not cursor.at(","):
            cursor.need("]")
            break
    if not calls or cursor.place != len(text):
        raise LiteralError("list")
    return tuple(calls)


def _read_call(cursor: Cursor, names: Container[str]) -> Call:
    name = cursor.match(_NAME)
    if name is None or name not in names:
        raise LiteralError("name")
    cursor.need("(")
    arguments: dict[str, Any] = {}
    while not cursor.at(")"):
        if cursor.at("**"):
            value = read_value(cursor)
            if not isinstance(value, dict):
                raise LiteralError("**")
            arguments |= value
        else:
            key = cursor.match(_NAME)
            cursor.need("=")
            arguments[key or ""] = read_value(cursor)
        if not cursor.at(","):
            cursor.need(")")
            break
    return Call(name, msgspec.json.encode(arguments).decode())
