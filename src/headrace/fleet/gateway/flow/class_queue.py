"""What waits of one class for one model: tenants in fair order, each with its own queue."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from headrace.config.fleet.flow import PriorityClass, QueueBounds, QueueOrder
from headrace.fleet.gateway.flow.fair_share import FairShare
from headrace.fleet.gateway.flow.values import Load, Ticket, Waiter


class TenantQueue:
    """One tenant's waiters, first come or first due. Those that leave early are skipped."""

    def __init__(self, order: QueueOrder) -> None:
        self._order = order
        self._heap: list[tuple[float, int, Waiter]] = []
        self.load = Load()

    def push(self, waiter: Waiter) -> None:
        """It waits from now on."""
        waiter.is_queued = True
        self.load.add(waiter.ticket)
        key = waiter.due if self._order is QueueOrder.EDF else 0.0
        heappush(self._heap, (key, waiter.number, waiter))

    def remove(self, waiter: Waiter) -> None:
        """It waits no longer. It must be in this queue."""
        waiter.is_queued = False
        self.load.remove(waiter.ticket)
        if len(self._heap) > 2 * self.load.num_requests + 16:
            self._heap = [entry for entry in self._heap if entry[2].is_queued]
            heapify(self._heap)

    def first(self) -> Waiter | None:
        """The next one; it stays."""
        while self._heap and not self._heap[0][2].is_queued:
            heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def __iter__(self) -> Iterator[Waiter]:
        return (waiter for _, _, waiter in self._heap if waiter.is_queued)


class ClassQueue:
    """Tenants' queues of one class. Their counters outlive the queues."""

    def __init__(self, kind: PriorityClass, tenant_bounds: QueueBounds, burst: float) -> None:
        self.kind = kind
        self.load = Load()
        self.credit = 0.0
        """Weighted tokens that it is owed of its share."""
        self.shares = FairShare(burst)
        self._tenant_bounds = tenant_bounds
        self._queues: dict[str, TenantQueue] = {}

    def refusal(self, ticket: Ticket) -> str | None:
        """Why there is no room for it, as words for the client; None: there is."""
        if not self.load.has_room(self.kind.bounds, ticket):
            return f"The queue of class '{self.kind.name}' is full"
        queue = self._queues.get(ticket.tenant)
        load = queue.load if queue is not None else Load()
        if not load.has_room(self._tenant_bounds, ticket):
            return f"Too many requests of '{ticket.tenant}' wait already"
        return None

    def push(self, waiter: Waiter) -> None:
        """It waits from now on, whatever the bounds say."""
        tenant = waiter.ticket.tenant
        queue = self._queues.get(tenant)
        if queue is None:
            queue = self._queues[tenant] = TenantQueue(self.kind.order)
            self.shares.join(tenant)
        queue.push(waiter)
        self.load.add(waiter.ticket)

    def remove(self, waiter: Waiter) -> None:
        """It waits no longer: it starts, or it goes. It must be in this queue."""
        tenant = waiter.ticket.tenant
        queue = self._queues[tenant]
        queue.remove(waiter)
        self.load.remove(waiter.ticket)
        if queue.load.num_requests == 0:
            del self._queues[tenant]
            self.shares.leave(tenant)
        if self.load.num_requests == 0:
            self.credit = 0.0

    def pass_through(self, tenant: str, tokens: float) -> None:
        """One of its requests starts without having waited; nobody waits here."""
        self.shares.join(tenant)
        self.shares.charge(tenant, tokens)
        self.shares.leave(tenant)
        self.credit = 0.0

    def first(self) -> Waiter | None:
        """The next one in fair order; it stays."""
        tenant = self.shares.first()
        return self._queues[tenant].first() if tenant is not None else None

    def resume(self, credit: float) -> None:
        """All have come over from before: whoever waits in another class now does not wait here."""
        self.shares.keep(self._queues)
        self.credit = credit if self._queues else 0.0

    def waiting(self) -> Iterator[tuple[str, int, float]]:
        """Tenants that wait: name, requests, and when the one that is next for each came (`Clock.monotonic`)."""
        for tenant, queue in self._queues.items():
            if (head := queue.first()) is not None:
                yield tenant, queue.load.num_requests, head.arrived

    def newest(self) -> Iterator[Waiter]:
        """In the order in which they give way: those of the tenant that has most waiting, the newest first.

        Nothing may change while this is read. O(waiters of the tenants it comes to).
        """
        widest_first = sorted(self._queues.values(), key=lambda queue: -queue.load.num_requests)
        for queue in widest_first:
            yield from sorted(queue, key=lambda waiter: -waiter.number)

    def __iter__(self) -> Iterator[Waiter]:
        for queue in self._queues.values():
            yield from queue
