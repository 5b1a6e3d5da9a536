"""The numbers behind the catalogue: plain Python values, cheap enough for every token."""

from bisect import bisect_left
from collections.abc import Collection, Iterator
from math import inf
from typing import Any

from headrace.observe.metric import Kind, Metric

LabelValues = tuple[str, ...]


class Histogram:
    """Counts per bucket (not cumulative), with sum. The last bucket is +Inf."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value; a bucket holds values up to and including its bound."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def add(self, other: "Histogram") -> None:
        """Count what another one has seen, whose bounds include all of these."""
        at = 0
        for bound, count in zip((*other.bounds, inf), other.counts, strict=True):
            while at < len(self.bounds) and self.bounds[at] < bound:
                at += 1
            self.counts[at] += count
        self.total += other.total

    @property
    def count(self) -> int:
        """Values seen."""
        return sum(self.counts)


class Metrics:
    """Values by metric and label values. One per server; not thread-safe, it has one writer."""

    def __init__(self) -> None:
        self._values: dict[Metric, dict[LabelValues, float]] = {}
        self._histograms: dict[Metric, dict[LabelValues, Histogram]] = {}

    def add(self, metric: Metric, labels: LabelValues, amount: float = 1.0) -> None:
        """Count up."""
        values = self._values.setdefault(metric, {})
        values[labels] = values.get(labels, 0.0) + amount

    def set(self, metric: Metric, labels: LabelValues, value: float) -> None:
        """Put a gauge."""
        self._values.setdefault(metric, {})[labels] = value

    def histogram(self, metric: Metric, labels: LabelValues) -> Histogram:
        """The histogram for these labels; keep it where it is used often."""
        family = self._histograms.setdefault(metric, {})
        found = family.get(labels)
        if found is None:
            found = family[labels] = Histogram(metric.bounds)
        return found

    def keep(self, metric: Metric, names: Collection[str]) -> None:
        """Drop what is told of others: samples whose first label is none of `names`."""
        stores: tuple[dict[LabelValues, Any] | None, ...] = (
            self._values.get(metric),
            self._histograms.get(metric),
        )
        for store in stores:
            for labels in [labels for labels in store or () if labels[0] not in names]:
                del (store or {})[labels]

    def value(self, metric: Metric, labels: LabelValues) -> float:
        """A counter or gauge; 0 when nothing was counted."""
        return self._values.get(metric, {}).get(labels, 0.0)

    def total(self, metric: Metric) -> float:
        """Sum over all labels."""
        return sum(self._values.get(metric, {}).values())

    def values(self, metric: Metric) -> Iterator[tuple[LabelValues, float]]:
        """All label values of a counter or gauge."""
        yield from self._values.get(metric, {}).items()

    def histograms(self, metric: Metric) -> Iterator[tuple[LabelValues, Histogram]]:
        """All label values of a histogram."""
        yield from self._histograms.get(metric, {}).items()

    def is_empty(self, metric: Metric) -> bool:
        """Nothing was recorded."""
        store = self._histograms if metric.kind is Kind.HISTOGRAM else self._values
        return not store.get(metric)
