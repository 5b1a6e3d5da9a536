"""An autoscaler with everything around it but processes and HTTP: a fake clock, a fake place, replicas that say what a
test wants. Instances that run become ready after `load_seconds`."""

from pathlib import Path
from typing import Any

from tests.support.fake_clock import FakeClock
from tests.support.fake_driver import FakeDriver

from headrace.config.fleet.pools import DriverKind, PoolConfig
from headrace.config.fleet.root import FleetConfig
from headrace.config.fleet.scaling import AutoscalerConfig, ScalingConfig
from headrace.core.errors import DriverError
from headrace.core.stats import ReplicaState
from headrace.fleet.autoscaler.build import Surroundings, build_autoscaler
from headrace.fleet.autoscaler.controller import Controller
from headrace.fleet.autoscaler.planner import Outcome
from headrace.fleet.drivers.protocol import InstanceState
from headrace.fleet.gateway.build import make_replica
from headrace.fleet.gateway.flow.admission import Admission
from headrace.fleet.gateway.flow.values import Ticket
from headrace.fleet.registry import Registry
from headrace.fleet.replica import Replica, Report
from headrace.observe.metrics import Metrics

SLOTS = 8
QUICK = ScalingConfig(down_delay=20.0, down_pause=4.0, zero_delay=30.0, max_step_up=10)


class FakeLease:
    """Held, unless a test says that another controller has it."""

    def __init__(self) -> None:
        self.is_free = True

    def holds(self) -> bool:
        return self.is_free

    def release(self) -> None:
        """Nothing is held."""


class FakeWarmth:
    """Implements `Warmth` on the world's replicas."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.refuses = False

    async def state(self, replica: Replica) -> ReplicaState | None:
        return ReplicaState.PARKED if replica.id in self._world.parked else None

    async def wake(self, replica: Replica, pool: PoolConfig) -> None:
        if self.refuses:
            raise DriverError("it will not")
        self._world.parked.discard(replica.id)
        self._world.loaded_at[replica.id] = self._world.clock.monotonic()

    async def park(self, replica: Replica) -> None:
        if self.refuses:
            raise DriverError("it will not")
        self._world.parked.add(replica.id)
        replica.ready_since = None


class World:
    """`await step()` again and again."""

    def __init__(self, directory: Path, *pools: PoolConfig, **config: Any) -> None:
        self.directory = directory
        usual = {"period": 2.0, "scaling": QUICK, "min_backoff": 2.0, "max_backoff": 20.0}
        self.config = FleetConfig(pools=pools, autoscaler=AutoscalerConfig(**{**usual, **config}))
        self.clock = FakeClock()
        self.driver = FakeDriver(self.clock)
        self.metrics = Metrics()
        self.warmth = FakeWarmth(self)
        self.lease = FakeLease()
        self.load_seconds = 3.0
        self.loads = True
        """Instances that run become ready."""
        self.running = 0.0
        """Sequences that run in all, if there is room for them."""
        self.waiting = 0
        self.arrivals = 0.0
        """A second."""
        self.parked: set[str] = set()
        self.loaded_at: dict[str, float] = {}
        self.broken: set[str] = set()
        """Those that are never ready."""
        self.new_controller()

    def new_controller(self) -> None:
        """As after the gateway was killed: another process, the same place, the same directory."""
        self.registry = Registry(
            self.config.health, self.clock, lambda spec: make_replica(self.config, spec)
        )
        self.admission = Admission(self.config.flow, self.clock, lambda _: None)
        around = Surroundings(self.registry, self.admission, self.metrics, self.clock)
        self.controller: Controller = build_autoscaler(
            self.config, {DriverKind.LOCAL: self.driver}, self.directory, around,
            warmth=self.warmth, lease=self.lease,
        )  # fmt: skip
        self.controller.recall()

        async def found() -> None:
            self.registry.reconcile(await self.controller.discovery.list() or ())

        self.controller.on_instances = found

    def configure(self, *pools: PoolConfig, **config: Any) -> None:
        """The file was changed and read again."""
        self.config = FleetConfig(
            pools=pools, autoscaler=AutoscalerConfig(**config) if config else self.config.autoscaler
        )
        self.controller.apply(self.config.pools, self.config.autoscaler)

    async def step(self, seconds: float = 2.0) -> Outcome | None:
        """Time passes, replicas go on, the autoscaler looks."""
        self.clock.advance(seconds)
        self._live(seconds)
        return await self.controller.tick()

    async def steps(self, count: int, seconds: float = 2.0) -> None:
        for _ in range(count):
            await self.step(seconds)

    # -- what there is -------------------------------------------------------------------------------

    def ready(self, pool: str | None = None) -> list[str]:
        """Ids of replicas that serve."""
        return [
            i.id for i in self.driver.snapshot(pool)
            if i.state is InstanceState.RUNNING
            and (r := self.registry.get(i.id)) is not None
            and r.ready_since is not None
            and not r.is_draining
        ]  # fmt: skip

    def alive(self, pool: str | None = None) -> list[str]:
        """Ids of instances that are neither gone nor going."""
        gone = (InstanceState.STOPPING, InstanceState.FAILED)
        return [i.id for i in self.driver.snapshot(pool) if i.state not in gone]

    def texts(self) -> list[str]:
        """The decision log, as sentences."""
        return [entry.text for entry in self.controller.entries.last(1000)]

    # -- replicas ------------------------------------------------------------------------------------

    def _live(self, seconds: float) -> None:
        now = self.clock.monotonic()
        for instance in self.driver.snapshot():
            replica = self.registry.get(instance.id)
            if replica is None:
                continue
            if instance.state is not InstanceState.RUNNING:
                replica.ready_since = None
                continue
            began = self.loaded_at.setdefault(instance.id, now)
            is_up = self.loads and instance.id not in self.parked | self.broken
            if not is_up or now - began < self.load_seconds:
                replica.ready_since = None
            elif replica.ready_since is None:
                replica.ready_since = began + self.load_seconds
        serving = [r for r in self.registry if r.ready_since is not None and not r.is_draining]
        models = {
            i.id: p.model
            for i in self.driver.snapshot()
            for p in self.config.pools
            if p.name == i.pool
        }
        share = int(self.running / len(serving) + 0.999) if serving else 0
        for replica in self.registry:
            is_serving = replica in serving
            replica.report = Report(
                state=ReplicaState.READY,
                models=(models.get(replica.id, "m"),),
                num_running=min(SLOTS, share) if is_serving else 0,
                num_waiting=self.waiting // len(serving) if is_serving else 0,
                max_num_seqs=SLOTS,
                kv_usage=min(1.0, share / SLOTS / 2) if is_serving else 0.0,
            )
        for _ in range(round(self.arrivals * seconds)):
            self.controller.sensors.arrived(
                Ticket(
                    lane="m", tenant="t", priority="standard", prompt_tokens=100, output_tokens=50
                )
            )
