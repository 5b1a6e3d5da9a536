"""Calls written as JSON objects with a name and arguments, alone or in a list."""

import re
from collections.abc import Container
from typing import Final

import msgspec
from msgspec import Raw

from headrace.completion.tools.syntax import MAX_DEPTH, Call

#: Outside strings: brackets, the quote, and whatever JSON does not have there.
_OUTSIDE: Final = re.compile(r'["{}\[\]]|[^\s0-9A-Za-z{}\[\]:,."+\-]')
_INSIDE: Final = re.compile(r'["\\]')
_NAMES: Final = ("name", "function")
_ARGUMENTS: Final = ("arguments", "parameters")


class JsonSpan:
    """Finds the end of a JSON object or list that grows, each character seen once.

    It watches brackets and strings only; whether the whole is JSON is for a decoder to say.
    """

    def __init__(self, start: int) -> None:
        """`start` is where its bracket stands."""
        self.is_broken = False
        """No JSON begins like this."""
        self.place = start
        """How far it has looked."""
        self._depth = 0
        self._in_string = False

    def find_end(self, text: str) -> int | None:
        """Behind the last bracket; None where it has not come, or where this is no JSON."""
        while not self.is_broken:
            match = (_INSIDE if self._in_string else _OUTSIDE).search(text, self.place)
            if match is None:
                self.place = len(text)
                return None
            found = match[0]
            if found == "\\" and match.end() == len(text):
                self.place = match.start()  # what it escapes is not here yet
                return None
            self.place = match.end() + (found == "\\")
            if self._in_string:
                self._in_string = found != '"'
            elif self._step(found):
                return self.place
            if self.is_broken:
                self.place = match.start()
        return None

    def _step(self, found: str) -> bool:
        """Take in a character outside strings; whether it is the last one."""
        if found == '"':
            self._in_string = True
        elif found in "{[":
            self._depth += 1
            self.is_broken = self._depth > MAX_DEPTH
        elif found in "}]":
            self._depth -= 1
            return self._depth == 0
        else:
            self.is_broken = True
        return False


def read_calls(text: str, names: Container[str]) -> tuple[Call, ...] | None:
    """The calls of an object, or of a list of them that is not empty; None where it is anything else."""
    try:
        kind = list[dict[str, Raw]] if text.startswith("[") else dict[str, Raw]
        value = msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
    items = value if isinstance(value, list) else [value]
    calls = [_read_call(item, names) for item in items]
    good = tuple(call for call in calls if call is not None)
    return good if good and len(good) == len(calls) else None


def read_arguments(raw: bytes | str) -> str | None:
    """The JSON text of an object. Some models write it once more as a JSON string, others write null."""
    try:
        value = msgspec.json.decode(raw)
        if isinstance(value, str):
            raw, value = value, msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
    if value is None:
        return "{}"
    if not isinstance(value, dict):
        return None
    return raw if isinstance(raw, str) else raw.decode()


def _read_call(item: dict[str, Raw], names: Container[str]) -> Call | None:
    name = next((_text(item[key]) for key in _NAMES if key in item), None)
    if name is None or name not in names:
        return None
    raw = next((bytes(item[key]) for key in _ARGUMENTS if key in item), b"{}")
    arguments = read_arguments(raw)
    return None if arguments is None else Call(name, arguments)


def _text(raw: Raw) -> str | None:
    try:
        return msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, UnicodeError):
        return None
