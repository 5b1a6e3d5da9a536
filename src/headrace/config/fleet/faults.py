"""Where in a fleet's file a fault stands that a struct found in itself. Asked only when there is a fault to tell."""

from collections.abc import Callable, Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
from msgspec import Struct

from headrace.core.errors import ConfigError


def located(
    tree: Any, kind: Any, construct: Callable[[type, Any], Any]
) -> tuple[str, ConfigError] | None:
    """Of `tree`, which is to be a `kind`, the innermost entry that is refused by itself: the way to it, such as
    `.accounts.keys[1].key`, and its fault. None: what is refused, if anything, is of the wrong type.
    """
    try:
        msgspec.convert(tree, kind, dec_hook=construct)
    except ConfigError as error:
        found = error
    except msgspec.ValidationError:
        return None
    else:
        return None
    for step, entry, inner in _entries(tree, kind):
        deeper = located(entry, inner, construct)
        if deeper is not None:
            return f"{step}{deeper[0]}", deeper[1]
    return f".{found.place}" if found.place else "", found


def _entries(tree: Any, kind: Any) -> Iterator[tuple[str, Any, Any]]:
    """What stands in `tree`: the step to it, itself, its type."""
    origin = get_origin(kind)
    if origin is Annotated:
        yield from _entries(tree, get_args(kind)[0])
    elif origin in (Union, UnionType):
        for inner in get_args(kind):
            yield from _entries(tree, inner)
    elif isinstance(tree, list):
        item = next(iter(get_args(kind)), Any)
        yield from ((f"[{index}]", entry, item) for index, entry in enumerate(tree))
    elif isinstance(tree, dict) and isinstance(kind, type) and issubclass(kind, Struct):
        for field in msgspec.structs.fields(kind):
            if field.encode_name in tree:
                yield f".{field.encode_name}", tree[field.encode_name], field.type
    elif isinstance(tree, dict) and get_args(kind):
        yield from ((f".{key}", entry, get_args(kind)[-1]) for key, entry in tree.items())
