"""The loop: list, look, decide, act. One for each gateway process; of those of one fleet, one acts.

It holds no truth: replicas outlive it, drivers list them, and the next controller adopts what they list. So it may be
killed at any moment, between any two of its steps.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from headrace.config.fleet.pools import PoolConfig, unknown_pool
from headrace.config.fleet.scaling import AutoscalerConfig
from headrace.config.units import counted
from headrace.core.clock import Clock
from headrace.core.errors import BadRequestError, NotFoundError
from headrace.core.stats import ReplicaState
from headrace.fleet.autoscaler import memory
from headrace.fleet.autoscaler.decision_log import DecisionLog
from headrace.fleet.autoscaler.discovery import PoolsDiscovery
from headrace.fleet.autoscaler.groups import GroupKey
from headrace.fleet.autoscaler.hands import Hands
from headrace.fleet.autoscaler.lease import Lease
from headrace.fleet.autoscaler.members import Phase
from headrace.fleet.autoscaler.meter import Meter
from headrace.fleet.autoscaler.places import Listing, Places
from headrace.fleet.autoscaler.planner import Outcome, Planner
from headrace.fleet.autoscaler.sensors import Sensors
from headrace.fleet.autoscaler.values import Signals
from headrace.fleet.autoscaler.warmth import Warmth
from headrace.fleet.registry import Registry

#: Seconds between two looks at least, however often it is woken.
MIN_PAUSE = 0.05
#: Phases in which a replica may be parked without the prober knowing.
_MAYBE_WARM = (Phase.STARTING, Phase.UNREADY, Phase.WARM, Phase.WARMING, Phase.DRAINING)

log = logging.getLogger("headrace.fleet")


class Kit(NamedTuple):
    """What a controller works with."""

    planner: Planner
    sensors: Sensors
    places: Places
    hands: Hands
    warmth: Warmth
    registry: Registry
    lease: Lease
    entries: DecisionLog
    meter: Meter


class Controller:
    """See the module."""

    def __init__(self, kit: Kit, memory_file: Path, clock: Clock) -> None:
        """`memory_file` is where what must outlive it is kept; its directory exists."""
        self.planner = kit.planner
        self.sensors = kit.sensors
        self.places = kit.places
        self.entries = kit.entries
        self.discovery = PoolsDiscovery()
        self.on_instances: Callable[[], Awaitable[None]] = _nothing
        """Awaited when other instances are there than before: the gateway looks at its sources."""
        self._hands = kit.hands
        self._warmth = kit.warmth
        self._registry = kit.registry
        self._lease = kit.lease
        self._meter = kit.meter
        self._memory_file = memory_file
        self._kept = b""
        self._clock = clock
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.is_leader = False
        self.signals: dict[GroupKey, Signals] = {}
        """Of the last look."""

    # -- the loop ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Look and act from now on."""
        self.recall()
        self._registry.startable = self._startable()
        self._task = asyncio.create_task(self._run(), name="autoscaler")

    async def close(self) -> None:
        """Let go; replicas run on. What an operator said is kept."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.to_thread(self.entries.flush)
        await self.places.close()
        self._lease.release()

    def wake(self) -> None:
        """Look now."""
        self._wake.set()

    def cold(self, lane: str) -> None:
        """A request waits for a model without a ready replica."""
        if self.sensors.groups_of(lane):
            self._wake.set()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self.tick()
            except Exception:  # one look that fails must not be the last
                log.exception("The autoscaler's look has failed; it looks again")
            await asyncio.sleep(min(MIN_PAUSE, self.planner.config.period))
            try:
                async with asyncio.timeout(self.planner.config.period):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def tick(self) -> Outcome | None:
        """One look; None if another controller acts."""
        listing = await self.places.list(tuple(self.planner.pools.values()))
        await self._observe(listing)
        self.is_leader = self._lease.holds()
        outcome = self._step() if self.is_leader else None
        if outcome is not None:
            await self._hands.do(outcome.actions)
            await self._show()
        self._tell()
        await self._keep()
        return outcome

    async def _observe(self, listing: Listing) -> None:
        for kind, fault in listing.faults.items():
            for pool in self.planner.pools.values():
                if pool.driver is kind:
                    self.entries.failed(self._clock.wall(), pool.name, f"Not listed: {fault}")
        states = await self._states()
        self.planner.observe(
            listing.instances,
            self.sensors.facts(states),
            unseen=listing.unseen,
            now=self._clock.monotonic(),
            wall=self._clock.wall(),
        )
        await self._show()

    async def _states(self) -> dict[str, ReplicaState]:
        """Of replicas that are not ready: whether they are parked."""
        asked = [
            replica
            for member in self.planner.members.values()
            if member.phase in _MAYBE_WARM
            and (replica := self._registry.get(member.id)) is not None
            and replica.ready_since is None
        ]
        answers = await asyncio.gather(*(self._warmth.state(replica) for replica in asked))
        return {
            replica.id: state
            for replica, state in zip(asked, answers, strict=True)
            if state is not None
        }

    def _step(self) -> Outcome:
        now, wall = self._clock.monotonic(), self._clock.wall()
        before = dict(self.planner.revisions.rollouts)
        self.signals = self.sensors.signals()
        outcome = self.planner.step(self.signals, now=now, wall=wall)
        for fault in self.planner.take_faults():
            log.warning("Pool %s: %s", fault.pool, fault.text)
            self.entries.failed(wall, fault.pool, fault.text, fault.instance)
        for decision in outcome.decisions:
            if self.entries.decided(decision):
                log.info(
                    "Pool %s: %s, %d wanted%s: %s%s",
                    decision.pool,
                    counted(decision.current, "replica"),
                    decision.desired,
                    f" ({decision.limited_by})" if decision.limited_by else "",
                    decision.reason,
                    " (only advice)" if decision.is_advisory else "",
                )
        for pool, rollout in self.planner.revisions.rollouts.items():
            old = before.get(pool)
            if rollout.is_back and (old is None or not old.is_back):
                text = f"The rollout of {rollout.new} was given up: {rollout.reason}."
                log.error("Pool %s: %s", pool, text)
                self.entries.failed(wall, pool, text)
        self._meter.decided(outcome.decisions)
        return outcome

    async def _show(self) -> None:
        """Tell the gateway which replicas there are."""
        members = self.planner.members.values()
        if self.discovery.show(member.instance for member in members):
            await self.on_instances()

    def _tell(self) -> None:
        self._meter.started(self.planner.take_cold_starts())
        self._meter.write(self.planner, is_leader=self.is_leader)
        self._registry.startable = self._startable()
        wanted = self.entries.latest()
        self._registry.is_asleep = any(
            decision.desired == 0 and not decision.is_advisory for decision in wanted.values()
        )

    def _startable(self) -> frozenset[str]:
        planner = self.planner
        return frozenset(name for key in planner.groups for name in self.sensors.names_of(key))

    # -- operators --------------------------------------------------------------------------------

    def apply(self, pools: Sequence[PoolConfig], config: AutoscalerConfig) -> None:
        """The configuration was read again."""
        self.planner.apply(pools, config)
        self.sensors.apply(config)
        self.entries.keep(set(self.planner.pools))
        self._registry.startable = self._startable()
        self.wake()

    def scale(self, pool: str, replicas: int | None) -> None:
        """An operator's word; None: by policy again. Raises NotFoundError, BadRequestError."""
        found = self.planner.pools.get(pool)
        if found is None:
            raise NotFoundError(unknown_pool(pool, self.planner.pools))
        if replicas is None:
            self.planner.overrides.pop(pool, None)
        elif not 0 <= replicas <= found.max_replicas:
            raise BadRequestError(
                f"The pool {pool} may have 0 to {found.max_replicas} replicas, not {replicas}.",
                param="replicas",
            )
        else:
            self.planner.overrides[pool] = replicas
        text = "by policy again" if replicas is None else f"set to {replicas}"
        self.entries.acted(self._clock.wall(), pool, "", f"{text}, by an operator")
        self.wake()

    # -- what outlives it -------------------------------------------------------------------------

    def recall(self) -> None:
        """What the controller before knew; before the first look."""
        found = memory.recall(self._memory_file)
        now, wall = self._clock.monotonic(), self._clock.wall()
        memory.restore(self.planner, found, now=now, wall=wall)
        for key, pools in self.planner.groups.items():
            capacity = found.capacities.get(pools[0].name)
            if capacity is not None and capacity > 0:
                self.sensors.sums[key].capacity.tokens_per_second = capacity

    async def _keep(self) -> None:
        """Write what changed. Only the controller that acts keeps."""
        await asyncio.to_thread(self.entries.flush)
        if not self.is_leader:
            return
        capacities = {
            pools[0].name: capacity
            for key, pools in self.planner.groups.items()
            if (capacity := self.sensors.sums[key].capacity.tokens_per_second) is not None
        }
        now, wall = self._clock.monotonic(), self._clock.wall()
        content = msgspec.json.encode(memory.of(self.planner, capacities, now=now, wall=wall))
        if content == self._kept:
            return
        try:
            await asyncio.to_thread(memory.write, self._memory_file, content)
            self._kept = content
        except OSError as error:
            log.warning("%s cannot be written: %s", self._memory_file, error.strerror)


async def _nothing() -> None:
    """Nobody listens."""
