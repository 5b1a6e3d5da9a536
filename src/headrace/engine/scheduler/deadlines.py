"""Which requests run out of time next."""

from collections.abc import Container
from heapq import heapify, heappop, heappush

from headrace.engine.scheduler.sequence import SequenceGroup


class Deadlines:
    """A heap of (time, group). Asking costs one comparison as long as nothing is due."""

    __slots__ = ("_count", "_heap")

    def __init__(self) -> None:
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
        return groups

    def next_at(self) -> float | None:
        """When the next bound passes."""
        return self._heap[0][0] if self._heap else None

    def forget_ended(self, live: Container[str], num_live: int) -> None:
        """Drop requests that ended in time, once they are the larger part: memory stays bounded."""
        if len(self._heap) > 64 + 4 * num_live:
            self._heap = [entry for entry in self._heap if entry[2].request.request_id in live]
            heapify(self._heap)

    def clear(self) -> None:
        """Nothing has a deadline any more."""
        self._heap.clear()

    def _push(self, at: float, group: SequenceGroup) -> None:
        self._count += 1  # breaks ties, groups have no order
        heappush(self._heap, (at, self._count, group))
