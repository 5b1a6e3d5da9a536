"""What became of requests and replicas, kept small: a few numbers a request, and sums by interval."""

from array import array
from collections import Counter
from collections.abc import Mapping

from msgspec import Struct

from headrace.bench.measure import Distribution, distribution, parse_slo
from headrace.core.errors import ConfigError

#: Intervals of a run that are kept.
_INTERVALS = 720
_SHORTEST = 1.0


class Moment(Struct, kw_only=True):
    """One interval of the run."""

    at: float
    """Seconds from the start."""
    num_arrived: int = 0
    num_good: int = 0
    """Of those that arrived in it."""
    tokens: int = 0
    """Of prompts and answers that arrived in it."""
    replica_seconds: float = 0.0
    """Of replicas that were paid for."""
    ready_seconds: float = 0.0
    """Of replicas that could serve."""


def read_slo(text: str) -> Mapping[str, float]:
    """Bounds by term. Raises ConfigError for what cannot be told of a simulated request."""
    bounds = parse_slo(text)
    if "itl" in bounds:
        raise ConfigError("--slo of a simulation takes ttft, tpot and e2e; gaps are not followed.")
    if not bounds:
        raise ConfigError("--slo needs at least one bound, such as ttft=2s.")
    return bounds


class Tally:
    """Filled while a simulation runs."""

    def __init__(self, slo: Mapping[str, float], duration: float) -> None:
        self._slo = slo
        self.duration = duration
        self.interval = max(_SHORTEST, duration / _INTERVALS)
        count = int(duration / self.interval) + 1
        self.moments = [Moment(at=i * self.interval) for i in range(count)]
        self.ttfts, self.tpots, self.e2es = array("f"), array("f"), array("f")
        self.num_arrived = 0
        self.num_good = 0
        self.prompt_tokens = self.output_tokens = self.cached_tokens = 0
        self.errors: Counter[str] = Counter()
        self.num_kills = self.num_boot_failures = self.num_boots = 0
        self._settled = 0.0
        self._num_paid = self._num_ready = 0
        self._ready_total = 0.0
        self.peak_replicas = 0
        self.last_end = 0.0

    def arrived(self, at: float, tokens: int) -> None:
        """A request came."""
        self.num_arrived += 1
        moment = self._moment(at)
        moment.num_arrived += 1
        moment.tokens += tokens

    def answered(
        self, at: float, first: float, end: float, prompt_tokens: int, num_tokens: int
    ) -> None:
        """A request that came `at` had its first token and its last one then."""
        ttft, e2e = first - at, end - at
        tpot = (end - first) / max(1, num_tokens - 1)
        self.ttfts.append(ttft)
        self.tpots.append(tpot)
        self.e2es.append(e2e)
        self.prompt_tokens += prompt_tokens
        self.output_tokens += num_tokens
        self.last_end = max(self.last_end, end)
        if self.is_good(ttft, tpot, e2e):
            self.num_good += 1
            self._moment(at).num_good += 1

    def is_good(self, ttft: float, tpot: float, e2e: float) -> bool:
        """It keeps all bounds."""
        seen = {"ttft": ttft, "tpot": tpot, "e2e": e2e}
        return all(seen[term] <= bound for term, bound in self._slo.items())

    def failed(self, kind: str) -> None:
        """A request got no whole answer."""
        self.errors[kind] += 1

    def replicas(self, now: float, num_paid: int, num_ready: int) -> None:
        """From now on there are so many, and of those so many that serve."""
        self._settle(now)
        self._num_paid, self._num_ready = num_paid, num_ready
        self.peak_replicas = max(self.peak_replicas, num_paid)

    def close(self) -> None:
        """The run is over."""
        self._settle(self.duration)

    @property
    def replica_hours(self) -> float:
        """Paid for, up to the end of the run."""
        return sum(moment.replica_seconds for moment in self.moments) / 3600.0

    def ready_seconds(self, now: float) -> float:
        """That replicas have served so far, all together."""
        self._settle(now)
        return self._ready_total

    def distributions(self) -> tuple[Distribution, Distribution, Distribution]:
        """Of TTFT, TPOT and E2E."""
        return distribution(self.ttfts), distribution(self.tpots), distribution(self.e2es)

    def _moment(self, at: float) -> Moment:
        return self.moments[min(len(self.moments) - 1, int(at / self.interval))]

    def _settle(self, now: float) -> None:
        """Add the time since the last change to the intervals that it lies in."""
        now = min(now, self.duration)
        at = self._settled
        while at < now:
            moment = self._moment(at)
            end = min(now, moment.at + self.interval)
            if end <= at:  # the last interval takes what rounding leaves
                end = now
            moment.replica_seconds += (end - at) * self._num_paid
            moment.ready_seconds += (end - at) * self._num_ready
            self._ready_total += (end - at) * self._num_ready
            at = end
        self._settled = max(self._settled, now)
