"""What replicas do, as numbers for the metrics page."""

from headrace.core.clock import Clock
from headrace.fleet.registry import Registry
from headrace.fleet.replica import Standing
from headrace.fleet.upstream.failure import FailureKind
from headrace.observe import gateway_metrics as table
from headrace.observe.metrics import Metrics

#: What is no failure.
OK, REFUSED, CANCELLED = "ok", "refused", "cancelled"


class ReplicaMeter:
    """Counts tries at replicas; series of replicas that have left are dropped."""

    def __init__(self, registry: Registry, metrics: Metrics, clock: Clock) -> None:
        self._registry = registry
        self._metrics = metrics
        self._clock = clock

    def tried(self, replica_id: str, outcome: str, seconds: float, ttft: float | None) -> None:
        """A try has ended: OK, REFUSED, CANCELLED, or a failure's kind. `ttft` is in seconds, of streams."""
        metrics = self._metrics
        metrics.add(table.REPLICA_REQUESTS, (replica_id, outcome))
        if outcome == OK:
            metrics.histogram(table.REPLICA_TIME, (replica_id,)).observe(seconds)
        if ttft is not None:
            metrics.histogram(table.REPLICA_TTFT, (replica_id,)).observe(ttft)

    def retried(self, reason: FailureKind) -> None:
        """A request is tried again; its client has had nothing."""
        self._metrics.add(table.GATEWAY_RETRIES, (str(reason),))

    def resumed(self, reason: FailureKind) -> None:
        """A stream that broke off is gone on with."""
        self._metrics.add(table.GATEWAY_RESUMPTIONS, (str(reason),))

    def write_gauges(self) -> None:
        """Bring the page up to date; before it is read."""
        now = self._clock.monotonic()
        known = {replica.id for replica in self._registry}
        for metric in table.BY_REPLICA:
            self._metrics.keep(metric, known)
        for replica in self._registry:
            running = replica.load.num_requests
            self._metrics.set(table.REPLICA_RUNNING, (replica.id,), running)
            standing = replica.standing(now)
            for each in Standing:
                self._metrics.set(
                    table.REPLICA_STANDING, (replica.id, each), float(each is standing)
                )


def outcome_of(kind: FailureKind) -> str:
    """The label of a failure."""
    return "refused_us" if kind is FailureKind.REFUSED else str(kind)
