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
#: How brackets change the depth; whatever else is found outside strings is too deep at once.
_LEVELS: Final = {"{": 1, "[": 1, "}": -1, "]": -1}
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
                break
            found, end = match[0], match.end()
            if found == "\\":
                if end == len(text):
                    self.place = match.start()  # what it escapes is not here yet
                    break
                end += 1
            elif found == '"':
                self._in_string = not self._in_string
            else:
                self._depth += _LEVELS.get(found, MAX_DEPTH)
                if self._depth == 0:
                    self.place = end
                    return end
                if self._depth > MAX_DEPTH:
                    self.is_broken, end = True, match.start()
            self.place = end
        return None


def read_calls(text: str, names: Container[str]) -> tuple[Call, ...] | None:
    """The calls of an object, or of a list of them that is not empty; None where it is anything else."""
    try:
        if text.startswith("["):
            items = msgspec.json.decode(text, type=list[dict[str, Raw]])
        else:
            items = [msgspec.json.decode(text, type=dict[str, Raw])]
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
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
