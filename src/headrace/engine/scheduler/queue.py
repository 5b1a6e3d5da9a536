"""The waiting line."""

from bisect import bisect_left, insort
from collections.abc import Iterator

from headrace.core.errors import InternalError
from headrace.engine.scheduler.sequence import Sequence


def _rank(sequence: Sequence) -> tuple[float, int, int]:
    return sequence.rank


class WaitingQueue:
    """Waiting sequences, best rank first: aged priority, then arrival. Preempted ones keep their place."""

    __slots__ = ("_sequences",)

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        """Over a snapshot: the queue may change meanwhile."""
        return iter(tuple(self._sequences))

    @property
    def first(self) -> Sequence | None:
        """The best rank that waits."""
        return self._sequences[0] if self._sequences else None

    def push(self, sequence: Sequence) -> None:
        """Put a sequence in its place."""
        insort(self._sequences, sequence, key=_rank)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out."""
        place = bisect_left(self._sequences, sequence.rank, key=_rank)
        if place == len(self._sequences) or self._sequences[place] is not sequence:
            raise InternalError("A sequence was to leave the queue but is not in it.")
        del self._sequences[place]
