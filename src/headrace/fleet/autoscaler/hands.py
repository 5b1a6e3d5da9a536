"""The one place where something is done: actions in, calls of drivers, registry and replicas out. Nothing is decided."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from headrace.core.clock import Clock
from headrace.core.errors import DriverError
from headrace.fleet.autoscaler.actions import Action, Drain, Park, Start, Stop, Undrain, Wake
from headrace.fleet.autoscaler.decision_log import DecisionLog
from headrace.fleet.autoscaler.places import Places
from headrace.fleet.autoscaler.planner import Planner
from headrace.fleet.autoscaler.warmth import Warmth
from headrace.fleet.registry import Registry
from headrace.fleet.replica import Replica
from headrace.observe.autoscaler_metrics import DRIVER_ERRORS
from headrace.observe.metrics import Metrics

log = logging.getLogger("headrace.fleet")


class Hands:
    """Does what a planner said. What fails is told to the planner, and tried again when it says so."""

    def __init__(
        self,
        planner: Planner,
        places: Places,
        registry: Registry,
        warmth: Warmth,
        entries: DecisionLog,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self.look_now: Callable[[Replica], None] = lambda _: None
        """Has a replica probed at once, which was told to serve."""
        self._planner = planner
        self._places = places
        self._registry = registry
        self._warmth = warmth
        self._entries = entries
        self._metrics = metrics
        self._clock = clock

    async def do(self, actions: Sequence[Action]) -> None:
        """All of them: what changes routing first and at once, then calls side by side."""
        calls = []
        for action in actions:
            match action:
                case Drain() | Undrain():
                    self._set_draining(action)
                case _:
                    calls.append(self._call(action))
        await asyncio.gather(*calls)

    def _set_draining(self, action: Drain | Undrain) -> None:
        replica = self._registry.get(action.instance_id)
        if replica is None:
            return
        is_draining = isinstance(action, Drain)
        self._registry.set_draining(replica, is_draining)
        text = f"drains: {action.reason}" if isinstance(action, Drain) else "takes part again"
        self._acted(action.instance_id, text)

    async def _call(self, action: Action) -> None:
        """Whatever comes of one, the others are done."""
        try:
            match action:
                case Start():
                    await self._start(action)
                case Stop():
                    self._acted(action.instance_id, f"is stopped: {action.reason}", once=True)
                    await self._places.stop(action.instance_id, grace=action.grace)
                case Wake():
                    await self._wake(action.instance_id)
                case Park():
                    await self._park(action.instance_id)
                case Drain() | Undrain():
                    pass
        except DriverError as error:
            pool = (
                action.pool.name if isinstance(action, Start) else self._pool_of(action.instance_id)
            )
            self._fault(pool, str(error))
            if isinstance(action, Start):
                now = self._clock.monotonic()
                self._planner.note_failed(pool, str(error), now, warm=action.prestarted)

    async def _start(self, action: Start) -> None:
        instance = await self._places.start(action.pool, prestarted=action.prestarted)
        now = self._clock.monotonic()
        self._planner.note_started(instance, prestarted=action.prestarted, now=now)
        self._acted(instance.id, "is started, to be warm" if action.prestarted else "is started")

    async def _wake(self, instance_id: str) -> None:
        replica = self._registry.get(instance_id)
        now = self._clock.monotonic()
        pool = self._pool_of(instance_id)
        if replica is None or pool not in self._planner.pools:
            self._planner.note_not_woken(instance_id, "it is not known yet", now)
            return
        self._acted(instance_id, "is woken")
        try:
            await self._warmth.wake(replica, self._planner.pools[pool])
            self.look_now(replica)
            if replica.is_draining:
                self._registry.set_draining(replica, False)
        except DriverError as error:
            # It is of no use as a warm one; the next look starts another in its place.
            self._planner.note_not_woken(instance_id, str(error), now)
            await self._places.stop(instance_id, grace=0.0)
            raise DriverError(f"{instance_id} could not be woken: {error}") from None

    async def _park(self, instance_id: str) -> None:
        replica = self._registry.get(instance_id)
        if replica is None:
            return
        try:
            await self._warmth.park(replica)
        except DriverError as error:
            await self._places.stop(instance_id, grace=0.0)
            raise DriverError(f"{instance_id} could not be parked: {error}") from None
        self._registry.set_draining(replica, False)
        self._acted(instance_id, "is parked")

    def _pool_of(self, instance_id: str) -> str:
        member = self._planner.members.get(instance_id)
        return "" if member is None else member.instance.pool

    def _acted(self, instance_id: str, text: str, *, once: bool = False) -> None:
        """`once`: it is asked for again and again until it shows."""
        pool, at = self._pool_of(instance_id), self._clock.wall()
        last = self._entries.last(100, pool=pool) if once else ()
        if any(entry.instance == instance_id and entry.text == text for entry in last):
            return
        log.info("Replica %s %s", instance_id, text)
        self._entries.acted(at, pool, instance_id, text)

    def _fault(self, pool: str, text: str) -> None:
        log.warning("Pool %s: %s", pool, text)
        self._entries.failed(self._clock.wall(), pool, text)
        found = self._planner.pools.get(pool)
        if found is not None:
            self._metrics.add(DRIVER_ERRORS, (str(found.driver),))
