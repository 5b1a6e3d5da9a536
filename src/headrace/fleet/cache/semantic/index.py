"""Vectors of questions, by conversation: a bounded index without numpy.

A vector is kept as 32-bit floats and as one integer of the signs of its components. Of two unit vectors the share of signs
that differ grows with their angle (Charikar, STOC 2002, for random planes; the components of an embedding do as well as
planes), so the few with the fewest differing signs are found with one XOR and a count of bits each, and only their
cosines are computed. That may overlook a neighbour, which is a miss, and never finds a wrong one.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from heapq import nsmallest
from itertools import islice
from math import isfinite, sqrt
from operator import mul
from typing import Final, NamedTuple

#: Candidates whose cosine is computed.
_EXACT: Final = 8


class Vector(NamedTuple):
    """A unit vector."""

    values: "array[float]"
    signs: int


class Near(NamedTuple):
    """A question that was found."""

    similarity: float
    key: bytes
    text: str


class _Entry(NamedTuple):
    vector: Vector
    context: bytes
    text: str


def vector_of(values: Iterable[float]) -> Vector | None:
    """None for what has no direction."""
    numbers = array("f", values)
    length = sqrt(sum(map(mul, numbers, numbers)))
    if not length or not isfinite(length):
        return None
    unit = array("f", [value / length for value in numbers])
    return Vector(unit, int("".join("1" if value > 0 else "0" for value in unit), 2))


def cosine(one: Vector, other: Vector) -> float:
    """Of two unit vectors of one length; 0 of different lengths, for then another model made them."""
    if len(one.values) != len(other.values):
        return 0.0
    return float(sum(map(mul, one.values, other.values)))


class VectorIndex:
    """Keys of answers by the vectors of their questions, at most `max_entries`; the least recently used go first."""

    def __init__(self, *, max_entries: int, max_scan: int) -> None:
        """`max_scan`: questions of one conversation that a search looks at, the newest."""
        self._max_entries = max_entries
        self._max_scan = max_scan
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._contexts: dict[bytes, dict[bytes, _Entry]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, key: bytes, context: bytes, text: str, vector: Vector) -> None:
        """Keep it, as the newest."""
        self.remove(key)
        entry = _Entry(vector, context, text)
        self._entries[key] = entry
        self._contexts.setdefault(context, {})[key] = entry
        while len(self._entries) > self._max_entries:
            self.remove(next(iter(self._entries)))

    def remove(self, key: bytes) -> None:
        """Forget it, if it is there."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        found = self._contexts[entry.context]
        del found[key]
        if not found:
            del self._contexts[entry.context]

    def touch(self, key: bytes) -> None:
        """It was of use."""
        if key in self._entries:
            self._entries.move_to_end(key)

    def near(self, context: bytes, vector: Vector, threshold: float) -> list[Near]:
        """Questions of the same conversation at least so similar, the most similar first."""
        found = self._contexts.get(context)
        if not found:
            return []
        signs = vector.signs
        newest: Iterator[bytes] = islice(reversed(found), self._max_scan)
        nearest = nsmallest(
            _EXACT, newest, key=lambda key: (found[key].vector.signs ^ signs).bit_count()
        )
        near = [Near(cosine(vector, found[key].vector), key, found[key].text) for key in nearest]
        return sorted((one for one in near if one.similarity >= threshold), reverse=True)
