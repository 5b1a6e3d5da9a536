"""How fast one stream comes: kept while it runs, told when it has ended."""

from headrace.fleet.slo.values import Pauses
from headrace.observe.metrics import Histogram


class Pace:
    """Of one answer, over all replicas that work on it. Times are of `Clock.monotonic`."""

    __slots__ = ("_last", "_num_tokens", "first", "gaps")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """`bounds` are the seconds by which pauses between tokens are counted, ascending."""
        self.first: float | None = None
        """When its first token came."""
        self.gaps = Histogram(bounds)
        self._last = 0.0
        self._num_tokens = 0

    def note(self, now: float, num_tokens: int) -> None:
        """So many tokens came together: each of them took its share of the time."""
        if self.first is None:
            self.first = now
        else:
            self.gaps.observe((now - self._last) / num_tokens, num_tokens)
        self._last = now
        self._num_tokens += num_tokens

    @property
    def tpot(self) -> float | None:
        """Mean seconds between two tokens, from the second on."""
        if self.first is None or self._num_tokens < 2:
            return None
        return (self._last - self.first) / (self._num_tokens - 1)

    @property
    def slow_gap(self) -> float | None:
        """Seconds that 95 of 100 of its gaps do not exceed, as exact as the bounds are close; None: there was no gap."""
        wanted, seen, low = 0.95 * self.gaps.count, 0, 0.0
        if not wanted:
            return None
        for bound, count in zip(self.gaps.bounds, self.gaps.counts, strict=False):
            if count and seen + count >= wanted:
                return low + (bound - low) * (wanted - seen) / count
            seen, low = seen + count, bound
        return low

    @property
    def pauses(self) -> Pauses | None:
        """None where there was no pause: one token, or none."""
        if not self.gaps.count:
            return None
        return Pauses(self.gaps.bounds, tuple(self.gaps.counts))
