"""How much one replica can do, learnt from when all of them were full. Pure."""

from typing import Final

#: Weight of a new value; of one that only shows that it is more than was thought.
ALPHA: Final = 0.2
#: Share of the slots from which replicas count as full.
FULL: Final = 0.9
#: Looks in a row at which they must have been full, so that the window holds little else.
MIN_FULL: Final = 5


class Capacity:
    """Weighted tokens a second of one replica. One for each group of pools."""

    def __init__(self, tokens_per_second: float | None = None) -> None:
        self.tokens_per_second = tokens_per_second
        """None: never seen full."""
        self._num_ready = 0
        self._since = 0.0
        self._num_full = 0

    def note(
        self,
        now: float,
        *,
        processed: float | None,
        num_ready: int,
        use: float | None,
        is_queued: bool,
        window: float,
    ) -> None:
        """One look. `processed` tokens a second over `window` seconds by all ready replicas, `use` of their slots.

        While replicas come and go, the window holds what another number of them did: then nothing is learnt.
        """
        if num_ready != self._num_ready:
            self._num_ready, self._since, self._num_full = num_ready, now, 0
        is_full = is_queued or (use is not None and use >= FULL)
        self._num_full = self._num_full + 1 if is_full else 0
        if processed is None or not num_ready or processed <= 0 or now - self._since < window:
            return
        rate, old = processed / num_ready, self.tokens_per_second
        if self._num_full >= MIN_FULL:
            self.tokens_per_second = rate if old is None else old + ALPHA * (rate - old)
        elif old is not None and rate > old:
            self.tokens_per_second = old + ALPHA * (rate - old)
