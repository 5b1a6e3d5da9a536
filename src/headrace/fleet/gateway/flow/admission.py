"""The asyncio edge of flow control: `async with admission.enter(ticket) as slot`.

One per gateway, on its event loop. All decisions are made in plain calls without an await between a look and its
consequence, so there is nothing to lock. Room comes from the registry (`free`); whoever makes some says so (`wake`).
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from heapq import heapify, heappop, heappush

from headrace.config.fleet.flow import FlowConfig
from headrace.core.clock import Clock
from headrace.core.errors import (
    HeadraceError,
    NoReplicaError,
    QueueFullError,
    QueueTimeoutError,
    RequestShedError,
    UnavailableError,
)
from headrace.fleet.gateway.flow.lane import Lane
from headrace.fleet.gateway.flow.report import FlowReport
from headrace.fleet.gateway.flow.room import Room
from headrace.fleet.gateway.flow.slot import Slot
from headrace.fleet.gateway.flow.values import Load, Ticket, Waiter
from headrace.fleet.gateway.flow.watcher import FlowWatcher, Nobody
from headrace.observe.metrics import Metrics

#: Seconds advised for a model without a replica, until a cold start has been seen.
COLD_RETRY_AFTER = 10.0
#: Seconds between two looks at the room that nobody has told of: no wake-up that was forgotten lasts.
LOOK_PERIOD = 0.5
#: Models whose queues are kept; beyond, those in which nothing happens are forgotten.
MAX_LANES = 1000

FreePlaces = Callable[[str], int | None]
"""Requests that ready replicas of a model could take now beyond those they have; None: no replica is ready."""


class Admission:
    """Who may go to a replica now, who waits, who is sent away."""

    def __init__(
        self,
        config: FlowConfig,
        clock: Clock,
        free: FreePlaces,
        *,
        metrics: Metrics | None = None,
        model_label: Callable[[str], str] = str,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`draw` gives numbers uniform in [0, 1), for gradual shedding. `model_label` is a lane's name in metrics."""
        self._config = config
        self._clock = clock
        self._free = free
        self._lanes: dict[str, Lane] = {}
        self._queued: dict[str, None] = {}
        """Models that requests wait for; the one that got a turn last is at the end."""
        self._is_going_on = False
        self._room = Room(config, self._lanes, draw)
        self._report = FlowReport(metrics or Metrics(), model_label)
        self._futures: dict[Waiter, asyncio.Future[Slot]] = {}
        self._limits: list[tuple[float, int, Waiter]] = []
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.watcher: FlowWatcher = Nobody()
        """Who is told of requests; one."""

    @asynccontextmanager
    async def enter(self, ticket: Ticket) -> AsyncIterator[Slot]:
        """Wait for a turn and hold it. Raises as `acquire`."""
        slot = await self.acquire(ticket)
        try:
            yield slot
        finally:
            slot.close()

    async def acquire(self, ticket: Ticket) -> Slot:
        """A turn, which the caller must close. At once where there is room and nobody waits.

        Raises QueueFullError, RequestShedError or QueueTimeoutError (429), NoReplicaError or UnavailableError (503).
        A caller that is cancelled while it waits leaves nothing behind.
        """
        now = self._clock.monotonic()
        # One counts for no more than a tenant may have waiting: else its claim alone would fill everybody's queue.
        ticket = ticket.within(max(1, self._config.tenant_bounds.tokens))
        lane = self._lane(ticket)
        self.watcher.arrived(ticket)
        if (slot := self._at_once(ticket, lane, now)) is not None:
            return slot
        try:
            waiter = self._queue(ticket, lane, now)
        except HeadraceError as error:
            self._report.refused(ticket, _reason(error))
            self._note_empty(ticket.lane, lane)
            raise
        future: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        self._futures[waiter] = future
        self._pump(ticket.lane)
        if not future.done():
            self._watch(waiter, lane)
        try:
            return await future
        except asyncio.CancelledError:
            self._left(waiter, future)
            raise

    def configure(self, config: FlowConfig) -> None:
        """Other classes and bounds, from now on. Everybody who waits keeps waiting; who runs does not notice."""
        self._config = config
        self._room.configure(config)
        for name, lane in self._lanes.items():
            self._lanes[name] = lane.renewed(config)
        self._watch_all()

    def wake(self, lane: str | None = None) -> None:
        """There may be more room: a replica is ready, has lost a request, or takes more. None: for any model."""
        if lane is not None:
            if lane in self._queued:
                self._pump(lane)
            return
        for name in list(self._queued):
            if self._pump(name) and not self._is_going_on:
                # Models may share replicas: a place that was given must be taken before it is looked at for others.
                self._is_going_on = True
                asyncio.get_running_loop().call_soon(self._go_on)
                return

    def tick(self) -> None:
        """Send away those that have waited too long, and look for room. A timer calls it while anyone waits."""
        self.wake()
        now = self._clock.monotonic()
        while self._limits and self._limits[0][0] <= now:
            _, number, waiter = heappop(self._limits)
            if not waiter.is_queued:
                continue
            lane = self._lanes[waiter.ticket.lane]
            limit = lane.limit(waiter)
            if limit > now:
                heappush(self._limits, (limit, number, waiter))
            else:
                self._refuse(waiter, self._too_late(waiter, lane, now))

    def close(self) -> None:
        """Send away all that wait, and let nobody in any more. Those that run go on."""
        self._is_closed = True
        for waiter in list(self._futures):
            if waiter.is_queued:
                self._refuse(waiter, UnavailableError("The gateway is stopping.", retry_after=1.0))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def placed(self, slot: Slot) -> None:
        """Part of SlotOwner."""
        self._lanes[slot.ticket.lane].num_unplaced -= 1

    def closed(self, slot: Slot) -> None:
        """Part of SlotOwner."""
        ticket = slot.ticket
        lane = self._lanes[ticket.lane]
        lane.num_running -= 1
        real = slot.charged if slot.is_placed else 0.0
        if slot.prompt_tokens is not None and slot.output_tokens is not None:
            real = lane.weighted(slot.prompt_tokens, slot.output_tokens)
        if not slot.is_placed:
            lane.num_unplaced -= 1
        lane.charge(ticket, real - slot.charged)
        self._report.served(ticket.tenant, real)
        self.watcher.ended(slot)
        self.wake()

    @property
    def waiting(self) -> Load:
        """What waits in all. To be read only."""
        return self._room.total

    @property
    def num_running(self) -> int:
        """Turns that are held."""
        return sum(lane.num_running for lane in self._lanes.values())

    @property
    def lanes(self) -> Mapping[str, Lane]:
        """By the name of their model. To be read only."""
        return self._lanes

    def num_waiting(self, lane: str) -> int:
        """Requests that wait for one model; what a fleet that scales from zero goes by."""
        found = self._lanes.get(lane)
        return found.num_waiting if found is not None else 0

    def cold_lanes(self) -> tuple[str, ...]:
        """Models that requests wait for and that have no ready replica."""
        return tuple(
            name
            for name, lane in self._lanes.items()
            if lane.cold_since is not None and lane.num_waiting
        )

    def waits(self) -> dict[str, tuple[int, float]]:
        """By model: requests that wait, and seconds that the longest of them has waited."""
        now = self._clock.monotonic()
        return {
            name: (self._lanes[name].num_waiting, now - min(w.arrived for w in self._lanes[name]))
            for name in self._queued
            if self._lanes[name].num_waiting
        }

    def write_gauges(self) -> None:
        """Bring the gauges up to date; before metrics are read."""
        self._report.gauge_lanes(self._lanes)
        self._report.gauge_total(self._room.total)

    def _lane(self, ticket: Ticket) -> Lane:
        found = self._lanes.get(ticket.lane)
        if found is None:
            if len(self._lanes) >= MAX_LANES:
                for name in [name for name, lane in self._lanes.items() if lane.is_idle]:
                    del self._lanes[name]
            found = self._lanes[ticket.lane] = Lane(self._config)
        return found

    def _at_once(self, ticket: Ticket, lane: Lane, now: float) -> Slot | None:
        """A turn without a wait, as most requests have it; None where somebody waits, or there is no place."""
        if lane.num_waiting:
            self._pump(ticket.lane)
        if lane.num_waiting or self._is_closed or not self._has_place(ticket.lane, lane, now):
            return None
        lane.take(ticket)
        return self._started(lane, ticket, now, now)

    def _queue(self, ticket: Ticket, lane: Lane, now: float) -> Waiter:
        """Put it in the queue, if there is room."""
        if self._is_closed:
            raise UnavailableError("The gateway is stopping.", retry_after=1.0)
        for leaving in self._room.make(ticket, now):
            self._evict(leaving, now)
        kind = lane.queue_of(ticket).kind
        due = now + next(t for t in (ticket.ttft, kind.ttft, kind.max_wait) if t is not None)
        self._number += 1
        waiter = Waiter(ticket, number=self._number, arrived=now, due=due)
        lane.push(waiter)
        self._queued[ticket.lane] = None
        self._room.total.add(ticket)
        return waiter

    def _has_place(self, name: str, lane: Lane, now: float) -> bool:
        free = self._free(name)
        if lane.note_readiness(free is not None, now):
            self._watch_all()
            if free is None:
                self.watcher.cold(name)
        return free is not None and free > lane.num_unplaced

    def _go_on(self) -> None:
        self._is_going_on = False
        self.wake()

    def _pump(self, name: str) -> bool:
        """Give turns as long as there is room; whether any was given."""
        lane = self._lanes[name]
        now = self._clock.monotonic()
        has_given = False
        while lane.num_waiting and self._has_place(name, lane, now):
            waiter = lane.pop()
            if waiter is None:
                break
            has_given = self._give(lane, waiter, now) or has_given
        self._note_empty(name, lane)
        if has_given and name in self._queued:
            del self._queued[name]
            self._queued[name] = None
        return has_given

    def _give(self, lane: Lane, waiter: Waiter, now: float) -> bool:
        """Its turn, unless its caller has left."""
        ticket = waiter.ticket
        self._room.total.remove(ticket)
        future = self._futures.pop(waiter)
        if future.done():  # its caller was cancelled, and has not come to take it out
            lane.charge(ticket, -lane.cost(ticket))
            self._report.refused(ticket, "left")
            return False
        future.set_result(self._started(lane, ticket, waiter.arrived, now))
        return True

    def _started(self, lane: Lane, ticket: Ticket, arrived: float, now: float) -> Slot:
        lane.num_running += 1
        lane.num_unplaced += 1
        lane.drain.note_start(now)
        cold = lane.cold_part(arrived, now)
        slot = Slot(
            self,
            ticket,
            now - arrived,
            arrived=arrived,
            charged=lane.cost(ticket),
            cold_seconds=cold,
        )
        self._report.started(ticket, slot.waited)
        return slot

    def _watch(self, waiter: Waiter, lane: Lane) -> None:
        limit, now = lane.limit(waiter), self._clock.monotonic()
        if limit <= now:  # it has somewhere else to go
            self._refuse(waiter, self._too_late(waiter, lane, now))
            return
        heappush(self._limits, (limit, waiter.number, waiter))
        if len(self._limits) > 2 * self._room.total.num_requests + 64:
            self._watch_all()
        if self._timer is None:
            self._arm()

    def _watch_all(self) -> None:
        """Limits that are still of use; those of a model change when it gets or loses its replicas."""
        self._limits = [
            (lane.limit(waiter), waiter.number, waiter)
            for lane in self._lanes.values()
            for waiter in lane
        ]
        heapify(self._limits)

    def _arm(self) -> None:
        now = self._clock.monotonic()
        first = self._limits[0][0] - now if self._limits else LOOK_PERIOD
        delay = min(LOOK_PERIOD, max(0.0, first))
        self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        try:
            self.tick()
        finally:  # whatever goes wrong with one: the others must not wait for ever
            if self._room.total.num_requests:
                self._arm()

    def _left(self, waiter: Waiter, future: asyncio.Future[Slot]) -> None:
        """The caller was cancelled: before its turn, or in the moment between its turn and its waking up."""
        if waiter.is_queued:
            self._report.refused(waiter.ticket, "left")
            self._remove(waiter)
        elif not future.cancelled() and future.exception() is None:
            future.result().close()

    def _refuse(self, waiter: Waiter, error: HeadraceError, reason: str | None = None) -> None:
        self._report.refused(waiter.ticket, reason or _reason(error))
        future = self._futures[waiter]
        self._remove(waiter)
        if not future.done():
            future.set_exception(error)

    def _remove(self, waiter: Waiter) -> None:
        name = waiter.ticket.lane
        self._futures.pop(waiter)
        self._lanes[name].remove(waiter)
        self._room.total.remove(waiter.ticket)
        self._note_empty(name, self._lanes[name])

    def _evict(self, waiter: Waiter, now: float) -> None:
        lane = self._lanes[waiter.ticket.lane]
        retry_after = lane.drain.retry_after(lane.num_waiting, now)
        error = RequestShedError(
            "The request gave way to others of a higher class.", retry_after=retry_after
        )
        self._refuse(waiter, error, "evicted")

    def _too_late(self, waiter: Waiter, lane: Lane, now: float) -> HeadraceError:
        waited = now - waiter.arrived
        if lane.cold_since is not None:
            cold = min(waited, now - lane.cold_since)
            return NoReplicaError(
                f"The model '{waiter.ticket.lane}' has had no ready replica for {cold:.0f} s.",
                retry_after=lane.cold_seconds or COLD_RETRY_AFTER,
            )
        rank = lane.queue_of(waiter.ticket).kind.rank
        return QueueTimeoutError(
            f"The request waited for {waited:.0f} s without getting its turn.",
            retry_after=lane.drain.retry_after(lane.ahead_of(rank), now),
        )

    def _note_empty(self, name: str, lane: Lane) -> None:
        """Nobody waits there any more. A cold start is timed from the first request that waits for it."""
        if not lane.num_waiting:
            lane.cold_since = None
            self._queued.pop(name, None)


def _reason(error: HeadraceError) -> str:
    kinds: tuple[tuple[type[HeadraceError], str], ...] = (
        (QueueFullError, "full"),
        (RequestShedError, "shed"),
        (QueueTimeoutError, "timeout"),
        (NoReplicaError, "no_replica"),
    )
    return next((name for kind, name in kinds if isinstance(error, kind)), "closed")
