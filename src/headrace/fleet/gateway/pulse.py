"""How streams are doing at this moment, counted token by token: cheap enough for each of them, whoever looks or not."""

from bisect import bisect_left
from collections.abc import Sequence
from math import log
from typing import Final

#: Times are sorted into buckets whose bounds grow by this: a percentile is wrong by half of it at most.
_GROWTH: Final = 1.15
_SHORTEST: Final = 0.0001
_LONGEST: Final = 1000.0
BOUNDS: Final = tuple(
    _SHORTEST * _GROWTH**n for n in range(round(log(_LONGEST / _SHORTEST) / log(_GROWTH)) + 1)
)


class Spread:
    """How often each time was seen. Counts only grow: what came between two looks is the difference."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)

    def note(self, seconds: float, times: int = 1) -> None:
        """Count it."""
        self.counts[bisect_left(BOUNDS, seconds)] += times


def quantile(counts: Sequence[int], share: float) -> float | None:
    """Seconds that `share` of what was counted did not exceed; None where nothing was counted."""
    total = sum(counts)
    if not total:
        return None
    wanted, seen = share * total, 0.0
    for place, count in enumerate(counts):
        if count and seen + count >= wanted:
            high = BOUNDS[min(place, len(BOUNDS) - 1)]
            low = high / _GROWTH
            return float(low + (high - low) * (wanted - seen) / count)
        seen += count
    return BOUNDS[-1]


class Pulse:
    """Of one gateway, since its start."""

    def __init__(self) -> None:
        self.ttft = Spread()
        """Seconds from a request's arrival to the first token of its stream."""
        self.itl = Spread()
        """Seconds between two tokens of a stream."""
        self.output_tokens = 0
        """Of streams as they come, of other answers when they have come."""

    def note_first(self, seconds: float | None, num_tokens: int) -> None:
        """A replica's first tokens have come, so long after the request; None: it goes on with another's stream."""
        if seconds is not None:
            self.ttft.note(seconds)
        self.output_tokens += num_tokens

    def note_more(self, seconds: float, num_tokens: int) -> None:
        """So many more tokens came at once, so long after those before."""
        self.itl.note(seconds / num_tokens, num_tokens)
        self.output_tokens += num_tokens

    def note_whole(self, num_tokens: int) -> None:
        """An answer in one piece."""
        self.output_tokens += num_tokens
