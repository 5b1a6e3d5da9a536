"""Who is turned away before queues are full: pure arithmetic."""

from headrace.config.fleet.flow import FlowConfig
from headrace.fleet.gateway.flow.lane import Lane
from headrace.fleet.gateway.flow.values import Load, Ticket


def saturation(config: FlowConfig, lane: Lane, total: Load, ticket: Ticket, now: float) -> float:
    """0 where nothing waits, 1 where a queue is full or a promise to a higher class is about to break.

    The fullest of: all queues, the ticket's own class, and for every class above it the wait that its next request
    can expect, as a share of its `ttft`.
    """
    own = lane.queue_of(ticket)
    found = max(total.fullness(config.total_bounds), own.load.fullness(own.kind.bounds))
    for queue in lane.classes.values():
        kind = queue.kind
        if kind.rank > own.kind.rank and kind.ttft is not None:
            wait = lane.drain.wait(lane.ahead_of(kind.rank), now)
            found = max(found, (wait or 0.0) / kind.ttft)
    return found


def shed_probability(saturated: float, shed_from: float) -> float:
    """0 up to `shed_from`, 1 from full on, growing evenly between."""
    return min(1.0, max(0.0, (saturated - shed_from) / (1.0 - shed_from)))
