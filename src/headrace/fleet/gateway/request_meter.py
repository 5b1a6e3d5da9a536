"""What requests came to, for clients: metrics by model, tenant and class; objectives; money."""

from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct

from headrace.config.units import format_duration
from headrace.core.clock import Clock
from headrace.fleet.gateway.accounts.ledger import UsageRow
from headrace.fleet.gateway.accounts.money import amount
from headrace.fleet.gateway.pace import Pace
from headrace.fleet.gateway.trip import Trip
from headrace.fleet.slo.book import SloBook
from headrace.fleet.slo.values import Ended, Verdict
from headrace.observe import gateway_metrics as table
from headrace.observe.labels import BoundedNames, BoundedSeries
from headrace.observe.metrics import Metrics
from headrace.observe.rates import Rate

_MINUTE, _HOUR = 60.0, 3600.0


class Result(StrEnum):
    """How a request ended. Those before LIMITED count for the availability of the fleet."""

    OK = "ok"
    BROKEN = "broken"
    """A stream that ended with an error."""
    FAILED = "failed"
    """5xx."""
    OVERLOADED = "overloaded"
    """429, because the fleet is full."""
    LIMITED = "limited"
    """429, because its key or tenant has used what it may."""
    REFUSED = "refused"
    """Any other 4xx."""
    LEFT = "left"
    """Its client left."""


_VERDICTS = {
    Result.OK: Verdict.GOOD,
    Result.BROKEN: Verdict.BAD,
    Result.FAILED: Verdict.BAD,
    Result.OVERLOADED: Verdict.BAD,
}


class Finished(Struct, frozen=True, kw_only=True):
    """A request that has ended."""

    row: UsageRow
    priority: str
    result: Result
    pace: Pace | None = None
    """Of a stream."""
    waited_for_first: float | None = None
    """Seconds that the client of a stream waited before it left, having had nothing."""
    queue: float | None = None
    """Seconds until its turn; None: it had none."""
    saved_tokens: int = 0
    """Because the answer was known."""
    saved_cost: int = 0
    """Billionths, for them."""
    saved_prefix_cost: int = 0
    """Billionths, for the cached part of the prompt."""
    trip: Trip | None = None
    """Its way, for those who look at single requests."""


Listener = Callable[[Finished], None]
"""Is told of every request that ended. Must not raise and must not wait."""


def nobody(_finished: Finished) -> None:
    """A listener that keeps nothing."""


class RequestMeter:
    """One gateway's. Labels are bounded, whatever tenants and models there are."""

    def __init__(
        self,
        metrics: Metrics,
        slos: SloBook,
        clock: Clock,
        on_ended: Listener = nobody,
        model_label: Callable[[str], str] = str,
    ) -> None:
        """`model_label` is a model's name in metrics."""
        self._label = model_label
        self._on_ended = on_ended
        self._metrics = metrics
        self._slos = slos
        self._clock = clock
        self._series = BoundedSeries()
        self._tenants = BoundedNames()
        self._models: dict[str, _Turnover] = {}
        self._bounds: tuple[float, ...] = ()
        self.configure()

    def configure(self) -> None:
        """The objectives have changed."""
        self._bounds = tuple(sorted({*table.REQUEST_ITL.bounds, *self._slos.pause_bounds}))

    def pace(self) -> Pace:
        """For a stream that begins."""
        return Pace(self._bounds)

    def ended(self, finished: Finished) -> None:
        """Count it, once."""
        row, now = finished.row, self._clock.monotonic()
        self._on_ended(finished)
        model = self._label(row.model)
        labels = self._series.labels(model, row.tenant, finished.priority)
        self._count(finished, labels)
        self._time(finished, labels)
        self._charge(finished, labels[0], now)
        if self._slos.objectives:
            self._judge(finished, model, now)

    def _judge(self, finished: Finished, model: str, now: float) -> None:
        row = finished.row
        judged = Ended(
            model=model,
            tenant=row.tenant,
            priority=finished.priority,
            verdict=_VERDICTS.get(finished.result, Verdict.NEITHER),
            ttft=_ttft(finished),
            has_first_token=finished.waited_for_first is None,
            tpot=finished.pace.tpot if finished.pace is not None else None,
            e2e=row.latency if finished.result is Result.OK else None,
            pauses=finished.pace.pauses if finished.pace is not None else None,
        )
        for slo, of_model, good, bad in self._slos.note(judged, now):
            for result, count in (("good", good), ("bad", bad)):
                # Both from the first on: a rate over a series that is not there yet is no 0.
                self._metrics.add(table.SLO_EVENTS, (of_model, slo, result), count)

    def write_gauges(self) -> None:
        """Bring the page up to date; before it is read."""
        now, put = self._clock.monotonic(), self._metrics.set
        for model, turnover in self._models.items():
            put(table.TOKEN_RATE, (model, "input"), turnover.input.per_second(now))
            put(table.TOKEN_RATE, (model, "output"), turnover.output.per_second(now))
            tokens = turnover.hour_tokens.growth(now)
            if tokens:
                put(table.COST_PER_1000, (model,), 1000 * turnover.hour_cost.growth(now) / tokens)
        self._write_objectives(now)

    def _count(self, finished: Finished, labels: tuple[str, str, str]) -> None:
        add, row = self._metrics.add, finished.row
        add(table.REQUESTS, (*labels, finished.result))
        for kind, tokens in (
            ("input", row.prompt_tokens - row.cached_tokens),
            ("cached", row.cached_tokens),
            ("output", row.output_tokens),
        ):
            if tokens > 0 and not finished.saved_tokens:
                add(table.REQUEST_TOKENS, (*labels, kind), tokens)

    def _time(self, finished: Finished, labels: tuple[str, str, str]) -> None:
        histogram, pace = self._metrics.histogram, finished.pace
        if finished.result is Result.OK:
            histogram(table.REQUEST_TIME, labels).observe(finished.row.latency)
        if finished.queue is not None:
            histogram(table.REQUEST_QUEUE_TIME, labels).observe(finished.queue)
        if pace is None or (ttft := _ttft(finished)) is None or pace.first is None:
            return
        histogram(table.REQUEST_TTFT, labels).observe(ttft)
        if (tpot := pace.tpot) is not None:
            histogram(table.REQUEST_TPOT, labels).observe(tpot)
            histogram(table.REQUEST_ITL, labels).add(pace.gaps)

    def _charge(self, finished: Finished, model: str, now: float) -> None:
        row, add = finished.row, self._metrics.add
        if finished.saved_tokens:
            add(table.SAVED_TOKENS, (model, "response"), finished.saved_tokens)
            add(table.SAVED_COST, (model, "response"), amount(finished.saved_cost))
            return
        if row.cached_tokens:
            add(table.SAVED_TOKENS, (model, "prefix"), row.cached_tokens)
            add(table.SAVED_COST, (model, "prefix"), amount(finished.saved_prefix_cost))
        if row.cost:
            add(table.TENANT_COST, (model, self._tenants.label(row.tenant)), amount(row.cost))
        if row.prompt_tokens or row.output_tokens:
            self._models.setdefault(model, _Turnover()).note(row, now)

    def _write_objectives(self, now: float) -> None:
        put = self._metrics.set
        for report in self._slos.reports(now):
            own = (report.model, report.slo)
            put(table.SLO_TARGET, own, report.target)
            put(table.SLO_BUDGET, own, report.budget_left)
            if report.attainment is not None:
                put(table.SLO_ATTAINMENT, own, report.attainment)
            for burn in report.burns:
                for seconds, rate in (
                    (burn.long_seconds, burn.long),
                    (burn.short_seconds, burn.short),
                ):
                    put(table.SLO_BURN, (*own, format_duration(seconds)), rate or 0.0)


class _Turnover:
    """Tokens and money of one model."""

    def __init__(self) -> None:
        self.input, self.output = Rate(_MINUTE), Rate(_MINUTE)
        self.hour_tokens, self.hour_cost = Rate(_HOUR), Rate(_HOUR)
        self._input = self._output = self._cost = 0.0
        self._is_new = True

    def note(self, row: UsageRow, now: float) -> None:
        if self._is_new:  # growth is counted from a point before the first
            self._is_new = False
            self._record(now)
        self._input += row.prompt_tokens
        self._output += row.output_tokens
        self._cost += amount(row.cost)
        self._record(now)

    def _record(self, now: float) -> None:
        self.input.record(now, self._input)
        self.output.record(now, self._output)
        self.hour_tokens.record(now, self._input + self._output)
        self.hour_cost.record(now, self._cost)


def _ttft(finished: Finished) -> float | None:
    if finished.waited_for_first is not None:
        return finished.waited_for_first
    return finished.row.ttft if finished.pace is not None else None
