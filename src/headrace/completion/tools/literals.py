"""Python and FunctionGemma literals as JSON values: a bounded recursive descent.

Neither is run: `eval` and its kin are not for what a model writes.
"""

import re
from typing import Any, Final

from headrace.completion.tools.syntax import MAX_DEPTH

_NUMBER: Final = re.compile(r"[+-]?(?:\d+(?:_\d+)*)?(?:\.\d*)?(?:[eE][+-]?\d+)?")
_WORDS: Final = {
    "True": True, "true": True, "False": False, "false": False, "None": None, "null": None,
}  # fmt: skip
_WORD: Final = re.compile(r"[A-Za-z_]\w*")
_ESCAPES: Final = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0",
    "\\": "\\", "'": "'", '"': '"', "/": "/", "\n": "",
}  # fmt: skip
_HEX: Final = {"x": 2, "u": 4, "U": 8}
_MAX_DIGITS: Final = 400


class LiteralError(Exception):
    """The text is no literal."""


class Cursor:
    """A place in a text."""

    def __init__(self, text: str, place: int = 0) -> None:
        self.text = text
        self.place = place
        self.depth = 0

    def skip(self) -> None:
        """Over white space."""
        while self.place < len(self.text) and self.text[self.place].isspace():
            self.place += 1

    def at(self, mark: str) -> bool:
        """Whether the mark comes next, behind white space; if so it is passed."""
        self.skip()
        if not self.text.startswith(mark, self.place):
            return False
        self.place += len(mark)
        return True

    def need(self, mark: str) -> None:
        """Pass the mark. Raises LiteralError where it does not come next."""
        if not self.at(mark):
            raise LiteralError(mark)

    def match(self, pattern: re.Pattern[str]) -> str | None:
        """Pass what the pattern matches here, if that is anything."""
        self.skip()
        match = pattern.match(self.text, self.place)
        if match is None or not match[0]:
            return None
        self.place = match.end()
        return match[0]

    def enter(self) -> None:
        """One bracket deeper. Raises LiteralError where that is too deep."""
        self.depth += 1
        if self.depth > MAX_DEPTH // 2:
            raise LiteralError("depth")


def read_value(cursor: Cursor) -> Any:
    """A Python literal: string, number, word, list, tuple or dict of these. Raises LiteralError."""
    cursor.skip()
    head = cursor.text[cursor.place : cursor.place + 1]
    if head in ("'", '"') and head:
        return _strings(cursor)
    if head in ("[", "("):
        cursor.place += 1
        return _items(cursor, "]" if head == "[" else ")")
    if head == "{":
        cursor.place += 1
        return _pairs(cursor)
    return read_plain(cursor)


def read_plain(cursor: Cursor) -> Any:
    """A number, or one of the words for true, false and nothing. Raises LiteralError."""
    word = cursor.match(_WORD)
    if word is not None:
        if word not in _WORDS:
            raise LiteralError(word)
        return _WORDS[word]
    number = cursor.match(_NUMBER)
    if number is None or len(number) > _MAX_DIGITS:
        raise LiteralError("number")
    try:
        return int(number) if re.fullmatch(r"[+-]?[\d_]+", number) else _finite(float(number))
    except ValueError as error:
        raise LiteralError(number) from error


def _finite(number: float) -> float:
    if number in (float("inf"), float("-inf")):
        raise LiteralError("infinity")
    return number


def _items(cursor: Cursor, closing: str) -> list[Any]:
    cursor.enter()
    items: list[Any] = []
    while not cursor.at(closing):
        items.append(read_value(cursor))
        if not cursor.at(","):
            cursor.need(closing)
            break
    cursor.depth -= 1
    return items


def _pairs(cursor: Cursor) -> dict[str, Any]:
    cursor.enter()
    pairs: dict[str, Any] = {}
    while not cursor.at("}"):
        key = read_value(cursor)
        if not isinstance(key, str):
            raise LiteralError("key")
        cursor.need(":")
        pairs[key] = read_value(cursor)
        if not cursor.at(","):
            cursor.need("}")
            break
    cursor.depth -= 1
    return pairs


def _strings(cursor: Cursor) -> str:
    """One string, or several side by side, which Python joins."""
    parts: list[str] = []
    while True:
        cursor.skip()
        quote = cursor.text[cursor.place : cursor.place + 1]
        if quote not in ("'", '"'):
            return "".join(parts)
        triple = quote * 3
        mark = triple if cursor.text.startswith(triple, cursor.place) else quote
        cursor.place += len(mark)
        parts.append(_string(cursor, mark))


def _string(cursor: Cursor, mark: str) -> str:
    parts: list[str] = []
    text = cursor.text
    while not text.startswith(mark, cursor.place):
        if cursor.place >= len(text):
            raise LiteralError("string")
        character = text[cursor.place]
        cursor.place += 1
        parts.append(_escape(cursor) if character == "\\" else character)
    cursor.place += len(mark)
    # Two escapes may spell one character, as in JSON; half of one is no text.
    joined = "".join(parts)
    try:
        return joined.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError as error:
        raise LiteralError("surrogate") from error


def _escape(cursor: Cursor) -> str:
    kind = cursor.text[cursor.place : cursor.place + 1]
    cursor.place += 1
    if kind in _HEX:
        digits = cursor.text[cursor.place : cursor.place + _HEX[kind]]
        cursor.place += _HEX[kind]
        if len(digits) != _HEX[kind] or not all(d in "0123456789abcdefABCDEF" for d in digits):
            raise LiteralError("escape")
        code = int(digits, 16)
        if code > 0x10FFFF:
            raise LiteralError("escape")
        return chr(code)
    # Python keeps the backslash of an escape that it does not know.
    return _ESCAPES.get(kind, "\\" + kind)
