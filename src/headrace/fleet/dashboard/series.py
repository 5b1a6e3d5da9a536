"""Numbers over time, in columns of fixed length: old ones fall out at the other end."""

from collections import deque
from collections.abc import Mapping, Sequence

from msgspec import Struct

Row = Mapping[str, float | None]


class SeriesPart(Struct, frozen=True, kw_only=True):
    """Some points of a series, oldest first. The n-th number of every column belongs to point `first + n`."""

    resolution: float
    """Seconds between two points."""
    first: int
    """Number of the first point here; points are counted from 0 since the gateway's start."""
    end: int
    """Number of the point that comes next; what `after` is for the next question."""
    columns: dict[str, list[float | None]]


class Series:
    """The last `length` points."""

    def __init__(self, names: Sequence[str], *, resolution: float, length: int) -> None:
        self._columns = {name: deque[float | None](maxlen=length) for name in names}
        self._resolution = resolution
        self._length = length
        self._end = 0

    def add(self, row: Row) -> None:
        """One more point; a column that it does not tell has a gap there."""
        for name, column in self._columns.items():
            column.append(row.get(name))
        self._end += 1

    def after(self, number: int) -> SeriesPart:
        """Points from `number` on, as far as they are there."""
        first = min(max(number, self._end - self._length, 0), self._end)
        count = self._end - first
        return SeriesPart(
            resolution=self._resolution,
            first=first,
            end=self._end,
            columns={name: _last(column, count) for name, column in self._columns.items()},
        )


def _last(column: deque[float | None], count: int) -> list[float | None]:
    return [column[n] for n in range(len(column) - count, len(column))]
