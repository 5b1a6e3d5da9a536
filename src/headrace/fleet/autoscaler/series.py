"""One series of numbers, guessed ahead: the same time of the last seasons, corrected by how it goes today.

Where a place in the season has been seen, the guess is its profile plus the recent deviation from the profile (the
seasonal naive method with drift; Hyndman and Athanasopoulos, "Forecasting: Principles and Practice", 5.2). Where it has
not, Holt's linear trend, damped (Gardner and McKenzie, 1985). Both are a few additions a bucket, and neither needs a fit.
"""

from collections.abc import Iterator

from msgspec import Struct

#: Weights of what is newest: level, trend, deviation, profile.
ALPHA, BETA, GAMMA, SEASONAL = 0.5, 0.3, 0.4, 0.5
#: What is left of a trend with each bucket ahead.
DAMPING = 0.9


class Series(Struct, frozen=True, kw_only=True):
    """Means of buckets, one after the other, and a profile of the season."""

    profile: tuple[float | None, ...]
    """By place in the season; None: not seen yet."""
    level: float | None = None
    trend: float = 0.0
    """Change per bucket."""
    deviation: float = 0.0
    """From the profile, of late."""

    def note(self, place: int, value: float) -> "Series":
        """With the bucket at `place` (0 ≤ place < len(profile)), whose mean was `value`."""
        old = self.profile[place]
        deviation = self.deviation
        if old is not None:
            deviation = _mixed(deviation, value - old, GAMMA)
        if self.level is None:
            level, trend = value, 0.0
        else:
            level = _mixed(self.level + DAMPING * self.trend, value, ALPHA)
            trend = _mixed(DAMPING * self.trend, level - self.level, BETA)
        seen = value if old is None else _mixed(old, value, SEASONAL)
        profile = (*self.profile[:place], seen, *self.profile[place + 1 :])
        return Series(profile=profile, level=level, trend=trend, deviation=deviation)

    def ahead(self, place: int, count: int) -> Iterator[float | None]:
        """Guesses for the `count` buckets from `place` on, which is the one behind the last that was noted. Never below 0."""
        sum_of_trend, damped = 0.0, 1.0
        for step in range(count):
            damped *= DAMPING
            sum_of_trend += damped
            seen = self.profile[(place + step) % len(self.profile)]
            if seen is not None:
                yield max(0.0, seen + self.deviation * DAMPING**step)
            elif self.level is not None:
                yield max(0.0, self.level + self.trend * sum_of_trend)
            else:
                yield None


def _mixed(old: float, new: float, alpha: float) -> float:
    return old + alpha * (new - old)
