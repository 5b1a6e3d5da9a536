"""What is likely to come: arrivals, and how long prompts and answers are, each guessed by itself."""

from math import ceil
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from headrace.config.fleet.scaling import ForecastConfig
from headrace.fleet.autoscaler.series import Series
from headrace.fleet.autoscaler.values import Signals


class Traffic(NamedTuple):
    """Means of a stretch of time."""

    arrivals: float
    """Requests a second."""
    input_tokens: float
    """Of a request."""
    output_tokens: float

    def tokens_per_second(self, prompt_weight: float) -> float:
        """Weighted, as in `Signals`."""
        return self.arrivals * (prompt_weight * self.input_tokens + self.output_tokens)


class _Bucket(Struct, frozen=True):
    """One that is not over: sums over looks."""

    number: int
    arrivals: float = 0.0
    num_arrivals: int = 0
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    num_lengths: int = 0


class Forecast(Struct, frozen=True, kw_only=True):
    """What was seen so far. `note` each look, and ask for what comes `within` so many seconds."""

    bucket_seconds: float
    arrivals: Series
    input_tokens: Series
    output_tokens: Series
    bucket: _Bucket | None = None

    @staticmethod
    def empty(config: ForecastConfig) -> "Forecast":
        """Nothing was seen."""
        places = max(1, round(config.season / config.bucket))
        series = Series(profile=(None,) * places)
        return Forecast(
            bucket_seconds=config.bucket, arrivals=series, input_tokens=series, output_tokens=series
        )

    def suits(self, config: ForecastConfig) -> bool:
        """It was made with these settings; otherwise what was seen is at other places."""
        places = max(1, round(config.season / config.bucket))
        return self.bucket_seconds == config.bucket and len(self.arrivals.profile) == places

    def note(self, signals: Signals, wall: float) -> "Forecast":
        """One look. What is not told is left out: it is not 0."""
        number = int(wall // self.bucket_seconds)
        if self.bucket is None:
            return replace(self, bucket=_added(_Bucket(number), signals))
        if number <= self.bucket.number:  # the wall clock may be set back: then the bucket grows on
            return replace(self, bucket=_added(self.bucket, signals))
        closed = self._closed(self.bucket)
        return replace(closed, bucket=_added(_Bucket(number), signals))

    def within(self, wall: float, seconds: float) -> Traffic | None:
        """The most work in any bucket from now until then; None: nothing was seen."""
        here = int(wall // self.bucket_seconds)
        count = min(len(self.arrivals.profile), 1 + ceil(seconds / self.bucket_seconds))
        place = self._place(here)
        found: list[Traffic] = []
        guesses = zip(
            self.arrivals.ahead(place, count),
            self.input_tokens.ahead(place, count),
            self.output_tokens.ahead(place, count),
            strict=True,
        )
        for arrivals, inputs, outputs in guesses:
            if arrivals is not None:
                found.append(Traffic(arrivals, inputs or 0.0, outputs or 0.0))
        return max(found, key=lambda traffic: traffic.tokens_per_second(1.0), default=None)

    def _place(self, number: int) -> int:
        return number % len(self.arrivals.profile)

    def _closed(self, bucket: _Bucket) -> "Forecast":
        """With a bucket that is over; one of which nothing was told leaves no mark."""
        place, found = self._place(bucket.number), self
        if bucket.num_arrivals:
            mean = bucket.arrivals / bucket.num_arrivals
            found = replace(found, arrivals=found.arrivals.note(place, mean))
        if bucket.num_lengths:
            inputs, outputs = (
                total / bucket.num_lengths for total in (bucket.input_tokens, bucket.output_tokens)
            )
            found = replace(
                found,
                input_tokens=found.input_tokens.note(place, inputs),
                output_tokens=found.output_tokens.note(place, outputs),
            )
        return found


def _added(bucket: _Bucket, signals: Signals) -> _Bucket:
    if signals.arrivals_per_second is not None:
        bucket = replace(
            bucket,
            arrivals=bucket.arrivals + signals.arrivals_per_second,
            num_arrivals=bucket.num_arrivals + 1,
        )
    if signals.input_tokens is not None and signals.output_tokens is not None:
        bucket = replace(
            bucket,
            input_tokens=bucket.input_tokens + signals.input_tokens,
            output_tokens=bucket.output_tokens + signals.output_tokens,
            num_lengths=bucket.num_lengths + 1,
        )
    return bucket
