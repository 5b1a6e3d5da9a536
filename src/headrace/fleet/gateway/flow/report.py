"""Flow control's numbers, written to the metrics."""

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

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._tenants = BoundedNames()

    def started(self, ticket: Ticket, waited: float) -> None:
        """It has its turn, `waited` seconds after it came."""
        labels = (ticket.lane, ticket.priority)
        self._metrics.histogram(FLOW_QUEUE_TIME, labels).observe(waited)

    def refused(self, ticket: Ticket, reason: str) -> None:
        """It gets no turn."""
        self._metrics.add(FLOW_REFUSED, (ticket.lane, ticket.priority, reason))

    def served(self, tenant: str, tokens: float) -> None:
        """What a request came to at its end."""
        self._metrics.add(FLOW_SERVED, (self._tenants.label(tenant),), tokens)

    def gauge_lane(self, name: str, lane: Lane) -> None:
        """What waits and runs now for one model."""
        for kind, queue in lane.classes.items():
            self._metrics.set(FLOW_WAITING, (name, kind), queue.load.num_requests)
            self._metrics.set(FLOW_WAITING_TOKENS, (name, kind), queue.load.num_tokens)
        self._metrics.set(FLOW_RUNNING, (name,), lane.num_running)

    def gauge_total(self, total: Load) -> None:
        """What waits in all."""
        self._metrics.set(FLOW_WAITING_BYTES, (), total.num_bytes)
