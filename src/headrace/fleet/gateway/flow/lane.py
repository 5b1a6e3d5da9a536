"""What waits for one model: classes by rank, each with a small share that it always gets."""

from collections.abc import Iterator

from headrace.config.fleet.flow import FlowConfig
from headrace.fleet.gateway.flow.class_queue import ClassQueue
from headrace.fleet.gateway.flow.drain import DrainRate
from headrace.fleet.gateway.flow.values import Ticket, Waiter


class Lane:
    """Queues of one model. Pure: time and room are told to it."""

    def __init__(self, config: FlowConfig) -> None:
        self._config = config
        ordered = sorted(config.classes, key=lambda kind: -kind.rank)
        self.classes = {
            kind.name: ClassQueue(kind, config.tenant_bounds, config.burst) for kind in ordered
        }
        """By name, highest rank first."""
        self.drain = DrainRate()
        self.num_unplaced = 0
        """Requests that were let in and are not yet counted at a replica."""
        self.num_running = 0
        """Requests that were let in and have not ended."""
        self.cold_since: float | None = None
        """Since when requests wait without a ready replica."""
        self.ready_since = float("-inf")
        """When the last cold start ended, and when it began."""
        self.cold_before = float("-inf")
        self.cold_seconds: float | None = None
        """How long the last cold start took."""

    def renewed(self, config: FlowConfig) -> "Lane":
        """The same under another configuration: everybody keeps waiting, what was served still counts."""
        new = Lane(config)
        new.drain = self.drain
        new.num_unplaced, new.num_running = self.num_unplaced, self.num_running
        new.cold_since, new.cold_seconds = self.cold_since, self.cold_seconds
        new.ready_since, new.cold_before = self.ready_since, self.cold_before
        for name in self.classes.keys() & new.classes.keys():
            new.classes[name].shares.adopt(self.classes[name].shares)
        for waiter in sorted(self, key=lambda waiter: waiter.number):
            new.push(waiter)
        for name, queue in new.classes.items():
            queue.resume(self.classes[name].credit if name in self.classes else 0.0)
        return new

    def queue_of(self, ticket: Ticket) -> ClassQueue:
        """Its class; the usual one for a class that a new configuration does not have."""
        return self.classes.get(ticket.priority) or self.classes[self._config.usual_class]

    @property
    def num_waiting(self) -> int:
        """Requests of all classes."""
        return sum(queue.load.num_requests for queue in self.classes.values())

    @property
    def is_idle(self) -> bool:
        """Nothing waits or runs."""
        return not (self.num_running or self.num_waiting)

    def push(self, waiter: Waiter) -> None:
        """It waits from now on."""
        self.queue_of(waiter.ticket).push(waiter)

    def remove(self, waiter: Waiter) -> None:
        """It leaves without having started."""
        self.queue_of(waiter.ticket).remove(waiter)

    def pop(self) -> Waiter | None:
        """The next one: of the highest class, unless a lower one is owed of its share. Charged to its tenant."""
        heads = [
            (queue, head) for queue in self.classes.values() if (head := queue.first()) is not None
        ]
        if not heads:
            return None
        owed = [
            (queue, head)
            for queue, head in heads[1:]
            if queue.kind.min_share and queue.credit >= self.cost(head.ticket)
        ]
        chosen, waiter = owed[-1] if owed else heads[0]
        cost = self.cost(waiter.ticket)
        for queue, _ in heads[1:]:
            queue.credit += queue.kind.min_share * cost
        if owed:
            chosen.credit -= cost
        self.charge(waiter.ticket, cost)
        chosen.remove(waiter)
        return waiter

    def take(self, ticket: Ticket) -> None:
        """It starts at once, since nobody waits: charged as if it had been pushed and popped."""
        self.queue_of(ticket).pass_through(ticket.tenant, self.cost(ticket) / ticket.weight)

    def cost(self, ticket: Ticket) -> float:
        """Weighted tokens that are expected of it; at least 1, so that empty requests count too."""
        return self.weighted(ticket.prompt_tokens, ticket.output_tokens)

    def weighted(self, prompt_tokens: int, output_tokens: int) -> float:
        """Tokens as they count in a tenant's share."""
        config = self._config
        return max(1.0, config.input_weight * prompt_tokens + config.output_weight * output_tokens)

    def charge(self, ticket: Ticket, tokens: float) -> None:
        """Its tenant was served more, or less than was charged before."""
        self.queue_of(ticket).shares.charge(ticket.tenant, tokens / ticket.weight)

    def sheddable_below(self, rank: int) -> Iterator[ClassQueue]:
        """Classes that give way to one of this rank, lowest first."""
        for queue in reversed(self.classes.values()):
            if queue.kind.rank < rank and queue.kind.sheddable and queue.load.num_requests:
                yield queue

    def ahead_of(self, rank: int) -> int:
        """Requests that wait in classes of at least this rank."""
        return sum(
            queue.load.num_requests for queue in self.classes.values() if queue.kind.rank >= rank
        )

    def note_readiness(self, is_ready: bool, now: float) -> bool:
        """Keep the times of a cold start; whether one began or ended."""
        if is_ready == (self.cold_since is None):
            return False
        if self.cold_since is None:
            self.cold_since = now
        else:
            self.cold_seconds = now - self.cold_since
            self.cold_before, self.cold_since = self.cold_since, None
            self.ready_since = now
        return True

    def cold_part(self, arrived: float, now: float) -> float:
        """Seconds of a wait that is over in which there was no ready replica; of several times the last counts."""
        return max(0.0, min(self.ready_since, now) - max(arrived, self.cold_before))

    def limit(self, waiter: Waiter) -> float:
        """Until when it may wait, as things are: for room, or for a replica at all. Each begins anew when the other ends, but
        both together end, though replicas come and go.
        """
        ticket, arrived = waiter.ticket, waiter.arrived
        kind, cold_wait = self.queue_of(ticket).kind, self._config.cold_wait
        last = arrived + cold_wait + kind.max_wait
        if ticket.max_wait is not None:
            last = min(last, arrived + ticket.max_wait)
        if self.cold_since is not None:
            own = cold_wait if ticket.cold_wait is None else min(cold_wait, ticket.cold_wait)
            return min(last, max(arrived, self.cold_since) + own)
        wait = kind.max_wait
        if ticket.can_move and kind.ttft is not None:
            wait = min(wait, kind.ttft)
        return min(last, max(arrived, self.ready_since) + wait)

    def __iter__(self) -> Iterator[Waiter]:
        for queue in self.classes.values():
            yield from queue
