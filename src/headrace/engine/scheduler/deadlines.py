"""Which requests run out of time next."""

from collections.abc import Container
from heapq import heapify, heappop, heappush
from math import inf

from headrace.engine.scheduler.sequence import SequenceGroup


class Deadlines:
    """A heap of (time, group)."""

    __slots__ = ("_count", "_heap", "earliest")

    def __init__(self) -> None:
        self.earliest = inf
        """No bound passes before: an attribute, as every step compares it."""
        self._heap: list[tuple[float, int, SequenceGroup]] = []
        self._count = 0

    def add(self, group: SequenceGroup) -> None:
        """Note both bounds of a request: time in the queue, and time in all."""
        request = group.request
        if request.deadline is not None:
            self._push(request.deadline, group)
        if request.max_queue_time is not None:
            self._push(group.queued_at + request.max_queue_time, group)

    def due(self, now: float) -> list[SequenceGroup]:
        """Take out the groups of which a bound has passed."""
        groups: list[SequenceGroup] = []
        while self._heap and self._heap[0][0] <= now:
            groups.append(heappop(self._heap)[2])
        self._update()
        return groups

    def next_at(self) -> float | None:
        """When the next bound passes."""
        return self._heap[0][0] if self._heap else None

    def forget_ended(self, live: Container[str], num_live: int) -> None:
        """Drop requests that ended in time, once they are the larger part: memory stays bounded."""
        if len(self._heap) > 64 + 4 * num_live:
            self._heap = [entry for entry in self._heap if entry[2].request.request_id in live]
            heapify(self._heap)
            self._update()

    def clear(self) -> None:
        """Nothing has a deadline any more."""
        self._heap.clear()
        self._update()

    def _push(self, at: float, group: SequenceGroup) -> None:
        self._count += 1  # breaks ties, groups have no order
        heappush(self._heap, (at, self._count, group))
        self._update()

    def _update(self) -> None:
        self.earliest = self._heap[0][0] if self._heap else inf
