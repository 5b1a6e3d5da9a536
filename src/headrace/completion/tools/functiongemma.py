"""`<start_function_call>call:name{key:<escape>text<escape>,n:1}<end_function_call>`: FunctionGemma.

Keys are bare words, texts stand between two `<escape>`; the arguments may be JSON as well.
"""

import re
from collections.abc import Container
from typing import Any, Final

import msgspec

from headrace.completion.tools.json_calls import read_arguments
from headrace.completion.tools.literals import Cursor, LiteralError, read_plain, read_value
from headrace.completion.tools.syntax import Block, Call, Failed, Found

OPEN: Final = "<start_function_call>"
CLOSE: Final = "<end_function_call>"
ESCAPE: Final = "<escape>"
_NAME: Final = re.compile(r"[\w.:/-]+")
_KEY: Final = re.compile(r"[^:{}\[\],<>\"]+")


class FunctionGemma:
    """The syntax."""

    marks = (OPEN,)
    bare = ""
    separators = ""

    def block(self, names: Container[str]) -> Block:
        return _Block(names)


class _Block:
    """One call. The closing mark may be missing at the end, where a stop token stands for it."""

    def __init__(self, names: Container[str]) -> None:
        self._names = names
        self._place = len(OPEN)

    def read(self, text: str, *, is_end: bool) -> Found | Failed | None:
        end = text.find(CLOSE, self._place)
        if end < 0 and not is_end:
            self._place = max(len(OPEN), len(text) - len(CLOSE) + 1)
            return None
        inner = text[len(OPEN) : end if end >= 0 else len(text)].strip()
        after = end + len(CLOSE) if end >= 0 else len(text)
        try:
            return Found((_read_call(inner, self._names),), after)
        except LiteralError:
            return Failed(after)


def _read_call(text: str, names: Container[str]) -> Call:
    cursor = Cursor(text)
    cursor.need("call:")
    name = cursor.match(_NAME)
    if name is None or name not in names:
        raise LiteralError("name")
    arguments = read_arguments(text[cursor.place :].strip())
    if arguments is None:
        cursor.need("{")
        arguments = msgspec.json.encode(_pairs(cursor)).decode()
        cursor.skip()
        if cursor.place != len(text):
            raise LiteralError("rest")
    return Call(name, arguments)


def _pairs(cursor: Cursor) -> dict[str, Any]:
    cursor.enter()
    pairs: dict[str, Any] = {}
    while not cursor.at("}"):
        key = _text(cursor) if cursor.at(ESCAPE) else cursor.match(_KEY)
        if key is None:
            raise LiteralError("key")
        cursor.need(":")
        pairs[key.strip()] = _value(cursor)
        if not cursor.at(","):
            cursor.need("}")
            break
    cursor.depth -= 1
    return pairs


def _value(cursor: Cursor) -> Any:
    if cursor.at(ESCAPE):
        return _text(cursor)
    if cursor.at("{"):
        return _pairs(cursor)
    if cursor.at("["):
        return _items(cursor)
    return (
        read_value(cursor)
        if cursor.text.startswith(('"', "'"), cursor.place)
        else read_plain(cursor)
    )


def _items(cursor: Cursor) -> list[Any]:
    cursor.enter()
    items: list[Any] = []
    while not cursor.at("]"):
        items.append(_value(cursor))
        if not cursor.at(","):
            cursor.need("]")
            break
    cursor.depth -= 1
    return items


def _text(cursor: Cursor) -> str:
    """Up to the second mark, as it is."""
    end = cursor.text.find(ESCAPE, cursor.place)
    if end < 0:
        raise LiteralError("escape")
    text = cursor.text[cursor.place : end]
    cursor.place = end + len(ESCAPE)
    return text
