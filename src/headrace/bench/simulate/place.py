"""Where replicas of detailed mode run: a driver whose starts take time, and sometimes fail."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from itertools import count
from random import Random
from typing import Any

from msgspec.structs import replace

from headrace.bench.simulate.engine_server import EngineServer
from headrace.bench.simulate.options import PlaceOptions
from headrace.bench.simulate.profile import Profile
from headrace.bench.simulate.scaling import Autoscaler
from headrace.bench.simulate.tally import Tally
from headrace.config.fleet.pools import PoolConfig
from headrace.config.fleet.replicas import ReplicaSpec
from headrace.core.clock import Clock
from headrace.fleet.drivers.protocol import Instance, InstanceState

#: Seconds between two looks at whether a replica that is to stop has finished.
_LOOK = 0.5


class SimulatedPlace:
    """Implements `fleet.drivers.protocol.Driver`. Replicas are `EngineServer`s by their id."""

    def __init__(
        self,
        profile: Profile,
        options: PlaceOptions,
        clock: Clock,
        rng: Random,
        tally: Tally,
        *,
        on_change: Callable[[Sequence[ReplicaSpec]], None],
    ) -> None:
        """`on_change` is told which replicas requests may be sent to."""
        self.servers: dict[str, EngineServer] = {}
        self.autoscaler: Autoscaler | None = None
        self._gone_seconds = 0.0
        self._profile = profile
        self._options = options
        self._clock = clock
        self._rng = rng
        self._tally = tally
        self._on_change = on_change
        self._numbers = count(1)
        self._instances: dict[str, Instance] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def list(self) -> Sequence[Instance]:
        """Part of Driver."""
        return list(self._instances.values())

    async def start(self, pool: PoolConfig, *, prestarted: bool = False) -> Instance:
        """Part of Driver. A replica has its address when it serves."""
        options, profile = self._options, self._profile
        boot = profile.boot_seconds if options.boot_time is None else options.boot_time
        return self._order(pool, profile.wake_seconds if prestarted else boot)

    def start_ready(self, pool: PoolConfig) -> Instance:
        """One that has been there before the simulation began."""
        instance = self._order(pool, None)
        return self._instances[instance.id]

    async def stop(self, instance_id: str, *, grace: float) -> None:
        """Part of Driver."""
        instance = self._instances.get(instance_id)
        if instance is None or instance.state is InstanceState.STOPPING:
            return
        server = self.servers.get(instance_id)
        if server is None:
            self._forget(instance_id)
            return
        self._instances[instance_id] = replace(instance, state=InstanceState.STOPPING)
        self._changed()
        self._go(self._drain(instance_id, server, grace))

    async def describe(self, instance_id: str) -> Mapping[str, str] | None:
        """Part of Driver."""
        instance = self._instances.get(instance_id)
        return None if instance is None else {"state": str(instance.state)}

    async def close(self) -> None:
        """Part of Driver."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def kill_one(self) -> None:
        """A replica that serves ends at once, if there is one."""
        serving = sorted(self.serving())
        if not serving:
            return
        victim = serving[self._rng.randrange(len(serving))]
        self._tally.num_kills += 1
        self.servers[victim].kill()
        self._instances[victim] = replace(
            self._instances[victim], state=InstanceState.FAILED, reason="killed"
        )
        self._changed()

    @property
    def busy_seconds(self) -> float:
        """Spent computing by all replicas there have been."""
        return self._gone_seconds + sum(s.busy_seconds for s in self.servers.values())

    def serving(self) -> Sequence[str]:
        """Ids of those that have an address and are not to stop."""
        return [i.id for i in self._instances.values() if i.state is InstanceState.RUNNING]

    def _order(self, pool: PoolConfig, seconds: float | None) -> Instance:
        number = next(self._numbers)
        instance = Instance(
            id=f"{pool.name}-{number}",
            pool=pool.name,
            version=pool.version,
            revision="",
            state=InstanceState.PENDING,
            started=self._clock.wall(),
        )
        self._instances[instance.id] = instance
        if seconds is None:
            self._ready(instance.id)
        else:
            self._tally.num_boots += 1
            self._changed()
            self._go(self._boot(instance.id, seconds))
        return instance

    async def _boot(self, instance_id: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if instance_id not in self._instances:
            return
        if self._rng.random() < self._options.boot_failures:
            self._tally.num_boot_failures += 1
            self._instances[instance_id] = replace(
                self._instances[instance_id],
                state=InstanceState.FAILED,
                reason="it ended while it started",
            )
            self._changed()
        else:
            if self.autoscaler is not None:
                self.autoscaler.booted(seconds)
            self._ready(instance_id)

    def _ready(self, instance_id: str) -> None:
        self.servers[instance_id] = EngineServer(self._profile)
        spec = ReplicaSpec(url=f"http://{instance_id}:80", id=instance_id)
        self._instances[instance_id] = replace(
            self._instances[instance_id], state=InstanceState.RUNNING, spec=spec
        )
        self._changed()

    async def _drain(self, instance_id: str, server: EngineServer, grace: float) -> None:
        end = self._clock.monotonic() + grace
        while not server.is_idle and self._clock.monotonic() < end:  # noqa: ASYNC110 - as drivers look
            await asyncio.sleep(_LOOK)
        server.kill()
        self._forget(instance_id)

    def _forget(self, instance_id: str) -> None:
        self._instances.pop(instance_id, None)
        server = self.servers.pop(instance_id, None)
        if server is not None:
            self._gone_seconds += server.busy_seconds
        self._changed()

    def _changed(self) -> None:
        states = [instance.state for instance in self._instances.values()]
        num_ready = states.count(InstanceState.RUNNING)
        num_paid = len(states) - states.count(InstanceState.FAILED)
        self._tally.replicas(self._clock.monotonic(), num_paid, num_ready)
        specs = [i.spec for i in self._instances.values() if i.spec is not None]
        running = set(self.serving())
        self._on_change([spec for spec in specs if spec.name in running])

    def _go(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
