"""Good and bad ones over the last seconds, in memory that does not grow."""

from collections.abc import Sequence

#: Slots of a window: it slides by so much of itself.
NUM_SLOTS = 60


class SlidingCount:
    """Counts over a window that slides in steps of a sixtieth: what it tells of is `span` to `span` + one step long."""

    def __init__(self, span: float) -> None:
        self.span = span
        self._width = span / NUM_SLOTS
        self._good = [0] * (NUM_SLOTS + 1)
        self._bad = [0] * (NUM_SLOTS + 1)
        self._sum_good = 0
        self._sum_bad = 0
        self._slot = 0
        """Number of the current one since time 0."""

    def add(self, now: float, good: int, bad: int) -> None:
        """Count some, `now` never going back."""
        self._slide(now)
        at = self._slot % len(self._good)
        self._good[at] += good
        self._bad[at] += bad
        self._sum_good += good
        self._sum_bad += bad

    def counts(self, now: float) -> tuple[int, int]:
        """Good, bad."""
        self._slide(now)
        return self._sum_good, self._sum_bad

    def kept(self, now: float) -> tuple[tuple[int, int], ...]:
        """Good and bad of every step, the current one first; empty ones at the end are left out."""
        self._slide(now)
        num_slots = len(self._good)
        places = [(self._slot - age) % num_slots for age in range(num_slots)]
        pairs = [(self._good[at], self._bad[at]) for at in places]
        while pairs and pairs[-1] == (0, 0):
            pairs.pop()
        return tuple(pairs)

    def restore(self, now: float, kept: Sequence[tuple[int, int]], elapsed: float) -> None:
        """Add what `kept` gave `elapsed` seconds ago; what is too old by now is left out."""
        self._slide(now)
        num_slots = len(self._good)
        passed = min(num_slots, round(elapsed / self._width))
        for age, (good, bad) in enumerate(kept[: num_slots - passed], passed):
            at = (self._slot - age) % num_slots
            self._good[at] += good
            self._bad[at] += bad
            self._sum_good += good
            self._sum_bad += bad

    def bad_share(self, now: float) -> float | None:
        """None where there was nothing."""
        good, bad = self.counts(now)
        return bad / (good + bad) if good + bad else None

    def _slide(self, now: float) -> None:
        slot = int(now // self._width)
        num_slots = len(self._good)
        for stale in range(max(self._slot + 1, slot - num_slots + 1), slot + 1):
            at = stale % num_slots
            self._sum_good -= self._good[at]
            self._sum_bad -= self._bad[at]
            self._good[at] = self._bad[at] = 0
        self._slot = max(self._slot, slot)
