"""Latencies of the requests that ended within the window: percentiles, and the share within the objectives. Pure.

Sums and orders are kept up as samples come and go, so that a look costs what has changed since the last one and not what
the window holds: a fleet of a hundred replicas ends thousands of requests a minute, and is looked at every two seconds.
"""

from bisect import bisect_left
from collections import deque
from math import ceil
from typing import Final, NamedTuple

from headrace.config.fleet.scaling import Objectives

#: Requests whose latencies are kept.
MAX_SAMPLES: Final = 4096
#: With fewer of them percentiles say nothing.
MIN_SAMPLES: Final = 5


class Sample(NamedTuple):
    """Seconds of one request; None: not known."""

    at: float
    """When it ended."""
    ttft: float | None
    tpot: float | None
    itl: float | None


class Latencies:
    """Of at most `MAX_SAMPLES` requests."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()
        self.ttft, self.tpot, self.itl = _Ordered(), _Ordered(), _Ordered()
        self._slo: Objectives | None = None
        self._num_judged = self._num_good = 0
        """Of all samples, by `_slo`."""

    def __len__(self) -> int:
        return len(self._samples)

    def note(self, sample: Sample) -> None:
        """One more; `at` never goes back."""
        if len(self._samples) >= MAX_SAMPLES:
            self._drop()
        self._samples.append(sample)
        self.ttft.add(sample.ttft)
        self.tpot.add(sample.tpot)
        self.itl.add(sample.itl)
        self._count(sample, 1)

    def forget(self, before: float) -> None:
        """What ended before this time."""
        while self._samples and self._samples[0].at < before:
            self._drop()

    def attainment(self, slo: Objectives) -> float | None:
        """Share within all objectives, of those that have a latency with one; None: there are too few."""
        if slo != self._slo:
            self._slo, self._num_judged, self._num_good = slo, 0, 0
            for sample in self._samples:
                self._count(sample, 1)
        return self._num_good / self._num_judged if self._num_judged >= MIN_SAMPLES else None

    def _drop(self) -> None:
        sample = self._samples.popleft()
        self.ttft.remove(sample.ttft)
        self.tpot.remove(sample.tpot)
        self.itl.remove(sample.itl)
        self._count(sample, -1)

    def _count(self, sample: Sample, sign: int) -> None:
        slo = self._slo
        if slo is None:
            return
        is_judged, is_good = False, True
        for value, bound in (
            (sample.ttft, slo.ttft),
            (sample.tpot, slo.tpot),
            (sample.itl, slo.itl),
        ):
            if value is not None and bound is not None:
                is_judged = True
                is_good = is_good and value <= bound
        if is_judged:
            self._num_judged += sign
            self._num_good += sign * is_good


class _Ordered:
    """Numbers in order. What is added is put in place when somebody asks: nearly sorted lists are quickly sorted."""

    __slots__ = ("_gone", "_new", "_values")

    def __init__(self) -> None:
        self._values: list[float] = []
        self._new: list[float] = []
        self._gone: list[float] = []

    def __len__(self) -> int:
        return len(self._values) + len(self._new) - len(self._gone)

    def add(self, value: float | None) -> None:
        if value is None:
            return
        self._new.append(value)
        if len(self._new) >= MAX_SAMPLES:  # nobody asks
            self._settle()

    def remove(self, value: float | None) -> None:
        """It must have been added."""
        if value is not None:
            self._gone.append(value)

    def p95(self) -> float | None:
        """The least value that 95 of 100 do not exceed; None: there are too few."""
        self._settle()
        values = self._values
        return values[ceil(0.95 * len(values)) - 1] if len(values) >= MIN_SAMPLES else None

    def _settle(self) -> None:
        self._values += self._new
        self._values.sort()
        self._new.clear()
        for value in self._gone:
            del self._values[bisect_left(self._values, value)]
        self._gone.clear()
