"""Values out of JSON that nobody vouches for: a wrong type is as good as absent."""

import math
from collections.abc import Iterable
from typing import Any

import msgspec


def decode(body: bytes) -> Any:
    """The JSON value, or None."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def table(value: Any) -> dict[str, Any]:
    """An object; empty if it is none."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """An array; empty if it is none."""
    return value if isinstance(value, list) else []


def tables(value: Any) -> Iterable[dict[str, Any]]:
    """The objects of an array."""
    return (item for item in items(value) if isinstance(item, dict))


def text(value: Any) -> str:
    """A string; empty if it is none."""
    return value if isinstance(value, str) else ""


def count(value: Any) -> int | None:
    """A number that counts something, not negative."""
    number = share(value)
    return None if number is None else int(number)


def share(value: Any) -> float | None:
    """A finite number, not negative."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # JSON's whole numbers have no bound
        return None
    return number if math.isfinite(number) and number >= 0 else None
