"""Flow control's numbers, written to the metrics."""

from collections import Counter
from collections.abc import Callable, Mapping

from headrace.fleet.gateway.flow.lane import Lane
from headrace.fleet.gateway.flow.values import Load, Ticket
from headrace.observe.catalogue import (
    FLOW_QUEUE_TIME,
    FLOW_REFUSED,
    FLOW_RUNNING,
    FLOW_SERVED,
    FLOW_WAITING,
    FLOW_WAITING_BYTES,
    FLOW_WAITING_TOKENS,
)
from headrace.observe.labels import BoundedNames
from headrace.observe.metrics import Metrics


class FlowReport:
    """Counters as things happen, gauges when they are asked for."""

    def __init__(self, metrics: Metrics, model_label: Callable[[str], str]) -> None:
        self._metrics = metrics
        self._label = model_label
        self._tenants = BoundedNames()

    def started(self, ticket: Ticket, waited: float) -> None:
        """It has its turn, `waited` seconds after it came."""
        labels = (self._label(ticket.lane), ticket.priority)
        self._metrics.histogram(FLOW_QUEUE_TIME, labels).observe(waited)

    def refused(self, ticket: Ticket, reason: str) -> None:
        """It gets no turn."""
        labels = (self._label(ticket.lane), ticket.priority, reason)
        self._metrics.add(FLOW_REFUSED, labels)

    def served(self, tenant: str, tokens: float) -> None:
        """What a request came to at its end."""
        self._metrics.add(FLOW_SERVED, (self._tenants.label(tenant),), tokens)

    def gauge_lanes(self, lanes: Mapping[str, Lane]) -> None:
        """What waits and runs now, by model."""
        waiting: Counter[tuple[str, str]] = Counter()
        tokens: Counter[tuple[str, str]] = Counter()
        running: Counter[str] = Counter()
        for name, lane in lanes.items():
            label = self._label(name)
            running[label] += lane.num_running
            for kind, queue in lane.classes.items():
                waiting[label, kind] += queue.load.num_requests
                tokens[label, kind] += queue.load.num_tokens
        for metric in (FLOW_WAITING, FLOW_WAITING_TOKENS, FLOW_RUNNING):
            self._metrics.keep(
                metric, running.keys()
            )  # queues that were forgotten are not told for ever
        for key, count in waiting.items():
            self._metrics.set(FLOW_WAITING, key, count)
            self._metrics.set(FLOW_WAITING_TOKENS, key, tokens[key])
        for label, count in running.items():
            self._metrics.set(FLOW_RUNNING, (label,), count)

    def gauge_total(self, total: Load) -> None:
        """What waits in all."""
        self._metrics.set(FLOW_WAITING_BYTES, (), total.num_bytes)
