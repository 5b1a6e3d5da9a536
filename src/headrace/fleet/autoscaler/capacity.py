"""How much one replica can do, learnt from what replicas did in the time in which they worked. Pure.

That alone is too little where batches are small: a larger batch does more in the same time, which shows only when more
is asked of a replica. So, while latencies are far below their objectives, the estimate grows slowly beyond what was seen,
and goes back faster when an objective is missed (increase and decrease by shares, as in congestion control).
"""

from typing import Final

#: Share of the slots from which replicas count as full.
FULL: Final = 0.9
#: Looks in a row at which they must have been full, so that the window holds little else.
MIN_FULL: Final = 5
#: Share of the time in steps from which what was done tells what can be.
BUSY: Final = 0.3
#: Weights of a new value: of full replicas; of others, if it shows that they can do more, or less.
ALPHA: Final = 0.2
UP: Final = 0.1
DOWN: Final = 0.005
#: Share of its objective below which the worst latency leaves room for more.
EASY: Final = 0.5
#: Growth a second while it is, and the step back a second while an objective is missed.
GROWTH: Final = 0.0002
BACK: Final = 0.004
#: Bound of what is hoped for, in what was seen.
MOST: Final = 2.0


class Capacity:
    """Weighted tokens a second of one replica. One for each group of pools."""

    def __init__(self, tokens_per_second: float | None = None) -> None:
        self.tokens_per_second = tokens_per_second
        """None: not known."""
        self._num_ready = 0
        self._since = 0.0
        self._num_full = 0
        self._looked = 0.0

    def note(
        self,
        now: float,
        *,
        processed: float | None,
        num_ready: int,
        use: float | None,
        is_queued: bool,
        window: float,
        busy: float | None = None,
        slowness: float | None = None,
    ) -> None:
        """One look. `processed` tokens a second over `window` seconds by all ready replicas, `use` of their slots, `busy`
        their mean share of time in steps, `slowness` the worst latency in shares of its objective.

        While replicas come and go, the window holds what another number of them did: then nothing is learnt.
        """
        seconds, self._looked = min(now - self._looked, window), now
        if num_ready != self._num_ready:
            self._num_ready, self._since, self._num_full = num_ready, now, 0
        is_full = is_queued or (use is not None and use >= FULL)
        self._num_full = self._num_full + 1 if is_full else 0
        if processed is None or not num_ready or processed <= 0 or now - self._since < window:
            return
        rate, old = processed / num_ready, self.tokens_per_second
        if old is not None and slowness is not None and slowness > 1.0:
            # Too much was asked of them; but what they do they can do.
            self.tokens_per_second = max(rate, old * (1.0 - BACK * seconds))
        elif self._num_full >= MIN_FULL:
            self._learn(rate, ALPHA)
        elif busy is not None and busy >= BUSY:
            self._learn_at_work(rate / busy, slowness, seconds)
        elif old is not None and rate > old:
            self._learn(rate, UP)

    def _learn_at_work(self, seen: float, slowness: float | None, seconds: float) -> None:
        """`seen` is what one did in a second of work."""
        old = self.tokens_per_second
        if old is None or seen > old:
            self._learn(seen, UP)
        elif slowness is None:
            self._learn(seen, DOWN)
        elif slowness < EASY:
            # Hope goes with what is seen: other requests may take more.
            self.tokens_per_second = min(old * (1.0 + GROWTH * seconds), MOST * seen)

    def _learn(self, rate: float, weight: float) -> None:
        old = self.tokens_per_second
        self.tokens_per_second = rate if old is None else old + weight * (rate - old)
