"""Looks at the gateway once a second and keeps what it saw: five minutes by the second, an hour by ten."""

from collections.abc import Iterable, Sequence
from typing import Final

from headrace.core.clock import Clock
from headrace.fleet.dashboard.requests import MAX_NAME, FinishedRing
from headrace.fleet.dashboard.series import Row, Series
from headrace.fleet.dashboard.tally import FAILURES, Tally
from headrace.fleet.gateway.accounts.money import amount
from headrace.fleet.gateway.flow.admission import Admission
from headrace.fleet.gateway.pulse import Pulse, quantile
from headrace.fleet.gateway.request_meter import Finished
from headrace.fleet.registry import Registry
from headrace.fleet.replica import Standing

NAMES: Final = (
    "ttft_p50", "ttft_p95", "ttft_p99", "itl_p50", "itl_p95", "itl_p99",
    "requests", "errors", "prompt_tokens", "output_tokens", "running", "waiting",
    "ready", "replicas", "kv_usage", "prefix_hits", "cost",
)  # fmt: skip
#: A fine point a second for so long, a coarse one every COARSE seconds for an hour.
FINE_POINTS: Final = 300
COARSE: Final = 10
COARSE_POINTS: Final = 360
_QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


class _Window:
    """Sums since the last point of one resolution."""

    def __init__(self, pulse: Pulse, now: float) -> None:
        self._pulse = pulse
        self.begin(now)

    def begin(self, now: float) -> None:
        """A point was made: count from here."""
        self.since = now
        self.requests = self.errors = self.prompt = self.cached = self.cost = 0
        self._ttft = list(self._pulse.ttft.counts)
        self._itl = list(self._pulse.itl.counts)
        self._output = self._pulse.output_tokens

    def add(self, finished: Finished) -> None:
        """One more has ended."""
        row = finished.row
        self.requests += 1
        self.errors += finished.result in FAILURES
        self.prompt += row.prompt_tokens
        self.cached += row.cached_tokens
        self.cost += row.cost

    def row(self, now: float) -> dict[str, float | None]:
        """Rates per second and percentiles."""
        seconds = max(now - self.since, 1e-3)
        row: dict[str, float | None] = {
            "requests": self.requests / seconds,
            "errors": self.errors / seconds,
            "prompt_tokens": self.prompt / seconds,
            "output_tokens": (self._pulse.output_tokens - self._output) / seconds,
            "prefix_hits": self.cached / self.prompt if self.prompt else None,
            "cost": amount(self.cost) / seconds,
        }
        for name, spread, before in (
            ("ttft", self._pulse.ttft, self._ttft),
            ("itl", self._pulse.itl, self._itl),
        ):
            counts = [new - old for new, old in zip(spread.counts, before, strict=True)]
            for label, share in _QUANTILES.items():
                row[f"{name}_{label}"] = quantile(counts, share)
        return row


class Watch:
    """What is kept of one gateway. `tick` it once a second."""

    def __init__(
        self, registry: Registry, admission: Admission, pulse: Pulse, clock: Clock
    ) -> None:
        now = clock.monotonic()
        self._registry = registry
        self._admission = admission
        self._clock = clock
        self._windows = (_Window(pulse, now), _Window(pulse, now))
        self._num_ticks = 0
        self.fine = Series(NAMES, resolution=1.0, length=FINE_POINTS)
        self.coarse = Series(NAMES, resolution=float(COARSE), length=COARSE_POINTS)
        self.requests = FinishedRing()
        self.tenants = Tally(now)
        self.models = Tally(now)

    def finished(self, finished: Finished) -> None:
        """Part of Listener."""
        now = self._clock.monotonic()
        for window in self._windows:
            window.add(finished)
        row = finished.row
        self.tenants.add(row.tenant[:MAX_NAME], finished, now)
        self.models.add(row.model[:MAX_NAME], finished, now)
        self.requests.add(finished)

    def tick(self) -> None:
        """A second has passed."""
        now = self._clock.monotonic()
        state = self._state(now)
        fine, coarse = self._windows
        self.fine.add({**fine.row(now), **state})
        fine.begin(now)
        self._num_ticks += 1
        if self._num_ticks % COARSE == 0:
            self.coarse.add({**coarse.row(now), **state})
            coarse.begin(now)

    def _state(self, now: float) -> Row:
        replicas = list(self._registry)
        ready = [replica for replica in replicas if replica.standing(now) is Standing.READY]
        return {
            "running": sum(replica.load.num_requests for replica in replicas),
            "waiting": self._admission.waiting.num_requests,
            "ready": len(ready),
            "replicas": len(replicas),
            "kv_usage": _mean(r.report.kv_usage for r in ready if r.report is not None),
        }


def _mean(values: Iterable[float | None]) -> float | None:
    told: Sequence[float] = [value for value in values if value is not None]
    return sum(told) / len(told) if told else None
