"""Making room in the queue for one more, or saying why there is none."""

from collections.abc import Callable, Mapping

from headrace.config.fleet.flow import FlowConfig
from headrace.core.errors import QueueFullError, RequestShedError
from headrace.fleet.gateway.flow.lane import Lane
from headrace.fleet.gateway.flow.shedding import saturation, shed_probability
from headrace.fleet.gateway.flow.values import Load, Ticket, Waiter


class Room:
    """The bounds of all queues together, and who gives way when they are reached. Pure but for `draw`."""

    def __init__(
        self, config: FlowConfig, lanes: Mapping[str, Lane], draw: Callable[[], float]
    ) -> None:
        """`draw` gives numbers uniform in [0, 1)."""
        self._config = config
        self._lanes = lanes
        self._draw = draw
        self.total = Load()
        """What waits in all."""

    def configure(self, config: FlowConfig) -> None:
        """Other bounds, from the next ticket on."""
        self._config = config

    def make(self, ticket: Ticket, now: float) -> list[Waiter]:
        """Those that must leave so that `ticket` may wait; usually none.

        Raises QueueFullError or RequestShedError; then nobody leaves.
        """
        lane = self._lanes[ticket.lane]
        queue = lane.queue_of(ticket)
        retry_after = lane.drain.retry_after(lane.ahead_of(queue.kind.rank), now)
        if queue.kind.sheddable:
            probability = shed_probability(
                saturation(self._config, lane, self.total, ticket, now), self._config.shed_from
            )
            if probability > 0.0 and self._draw() < probability:
                raise RequestShedError(
                    f"Requests of class '{queue.kind.name}' are turned away while the queue is this long.",
                    retry_after=retry_after,
                )
        refusal = queue.refusal(ticket)
        if refusal is not None:
            raise QueueFullError(f"{refusal}; try again later.", retry_after=retry_after)
        leaving = self._leaving(ticket, lane, queue.kind.rank)
        if leaving is None:
            raise QueueFullError("The queue is full; try again later.", retry_after=retry_after)
        return leaving

    def _leaving(self, ticket: Ticket, lane: Lane, rank: int) -> list[Waiter] | None:
        """Waiters of lower, sheddable classes, lowest first, whose leaving makes room; None: not enough."""
        bounds = self._config.total_bounds
        left = Load()
        left.num_requests = self.total.num_requests
        left.num_tokens = self.total.num_tokens
        left.num_bytes = self.total.num_bytes
        leaving: list[Waiter] = []
        if left.has_room(bounds, ticket):
            return leaving
        others = [other for other in self._lanes.values() if other is not lane]
        queues = [queue for each in (lane, *others) for queue in each.sheddable_below(rank)]
        for queue in sorted(
            queues, key=lambda queue: queue.kind.rank
        ):  # of one rank its own model's first
            for waiter in queue.newest():
                leaving.append(waiter)
                left.remove(waiter.ticket)
                if left.has_room(bounds, ticket):
                    return leaving
        return None
