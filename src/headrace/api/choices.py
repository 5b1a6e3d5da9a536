"""The values that a field of a request may have, found by its place in msgspec's words."""

import re
from collections.abc import Iterator
from typing import Any

from msgspec import inspect

#: One step of a place such as `$.messages[0].role`.
_STEP = re.compile(r"\.(?P<field>[^.\[]+)|\[(?:[0-9]+|\.\.\.)\]")


def choices_at(kind: Any, path: str) -> tuple[str, ...]:
    """As msgspec orders them; none where the field at `path` has no fixed values.

    Not for the path of good requests: it looks at the whole type.
    """
    found = [inspect.type_info(kind)]
    for step in _STEP.finditer(path):
        found = [inner for each in found for inner in _inside(each, step["field"])]
    return tuple(dict.fromkeys(str(value) for each in found for value in _values(each)))


def _members(info: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(info, inspect.Metadata):
        yield from _members(info.type)
    elif isinstance(info, inspect.UnionType):
        for member in info.types:
            yield from _members(member)
    else:
        yield info


def _inside(info: inspect.Type, field: str | None) -> Iterator[inspect.Type]:
    """What is one step further in."""
    for member in _members(info):
        if isinstance(member, inspect.StructType) and field is not None:
            yield from (each.type for each in member.fields if each.encode_name == field)
        elif isinstance(member, inspect.CollectionType) and field is None:
            yield member.item_type
        elif isinstance(member, inspect.DictType) and field is None:
            yield member.value_type


def _values(info: inspect.Type) -> Iterator[Any]:
    for member in _members(info):
        if isinstance(member, inspect.LiteralType):
            yield from member.values
        elif isinstance(member, inspect.EnumType):
            yield from (each.value for each in member.cls)
