"""A place for replicas that exists in memory: time is a clock's that a test may hold, faults come when a test wants them."""

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from headrace.config.fleet.pools import PoolConfig
from headrace.config.fleet.replicas import ReplicaSpec
from headrace.core.clock import Clock
from headrace.core.errors import DriverError
from headrace.fleet.drivers.protocol import Instance, InstanceState
from headrace.fleet.drivers.revision import revision_of

UrlOf = Callable[[str], str]
"""Address of an instance by its id."""


class FakeDriver:
    """Implements `fleet.drivers.protocol.Driver`. What it holds outlives whoever uses it, as real places do.

    A started instance is PENDING for `pending` seconds, then RUNNING (or PRESTARTED); a stopped one is STOPPING for
    `stopping` seconds, then gone. `is_down` makes every call raise DriverError; `num_refused_starts` the next starts.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        pending: float = 0.0,
        stopping: float = 0.0,
        url_of: UrlOf = "http://{}.test:8000".format,
    ) -> None:
        self._clock = clock
        self._url_of = url_of
        self.pending = pending
        self.stopping = stopping
        self.is_down = False
        self.num_refused_starts = 0
        self.crashes_at_once = False
        """What is started fails as soon as it leaves PENDING."""
        self.log: list[tuple[str, str]] = []
        """Every call that changed something: start, prestart or stop, and the id."""
        self._instances: dict[str, Instance] = {}
        self._pools: dict[str, PoolConfig] = {}
        self._prestarted: set[str] = set()
        self._stopped: dict[str, float] = {}
        self._number = 0

    # -- Driver -------------------------------------------------------------------------------------

    async def list(self) -> Sequence[Instance]:
        self._check()
        return self.snapshot()

    async def start(self, pool: PoolConfig, *, prestarted: bool = False) -> Instance:
        self._check()
        if self.num_refused_starts:
            self.num_refused_starts -= 1
            raise DriverError("There is no room.")
        self._number += 1
        instance_id = f"{pool.name}-{self._number}"
        self._pools[instance_id] = pool
        if prestarted:
            self._prestarted.add(instance_id)
        self._instances[instance_id] = Instance(
            id=instance_id,
            pool=pool.name,
            version=pool.version,
            revision=revision_of(pool),
            state=InstanceState.PENDING,
            started=self._clock.wall(),
        )
        self.log.append(("prestart" if prestarted else "start", instance_id))
        self._pass_time()
        return self._instances[instance_id]

    async def stop(self, instance_id: str, *, grace: float) -> None:
        self._check()
        assert grace >= 0
        found = self._instances.get(instance_id)
        if found is None or instance_id in self._stopped:
            return
        self.log.append(("stop", instance_id))
        self._stopped[instance_id] = self._clock.monotonic() + min(grace, self.stopping)
        self._instances[instance_id] = replace(found, state=InstanceState.STOPPING)
        self._pass_time()

    async def describe(self, instance_id: str) -> Mapping[str, str] | None:
        self._check()
        found = self._instances.get(instance_id)
        return None if found is None else {"node": "test", "state": str(found.state)}

    async def close(self) -> None:
        """Nothing is held."""

    # -- what a test does and looks at ------------------------------------------------------------------

    def snapshot(self, pool: str | None = None) -> tuple[Instance, ...]:
        """All instances as they are now, or those of one pool."""
        self._pass_time()
        return tuple(i for i in self._instances.values() if pool is None or i.pool == pool)

    def fail(self, instance_id: str, reason: str = "it was killed") -> None:
        """It ends by itself."""
        found = self._instances[instance_id]
        self._instances[instance_id] = replace(found, state=InstanceState.FAILED, reason=reason)

    def vanish(self, instance_id: str) -> None:
        """It ends without a trace, as on a machine that is lost."""
        del self._instances[instance_id]

    def load(self, instance_id: str) -> None:
        """A pre-started one has loaded its model."""
        self._prestarted.discard(instance_id)
        self._instances[instance_id] = replace(
            self._instances[instance_id], state=InstanceState.PENDING
        )
        self._pass_time()

    def _check(self) -> None:
        if self.is_down:
            raise DriverError("The place cannot be asked.")

    def _pass_time(self) -> None:
        now = self._clock.monotonic()
        for instance_id, until in list(self._stopped.items()):
            if until <= now:
                del self._stopped[instance_id]
                self._instances.pop(instance_id, None)
        for instance_id, found in self._instances.items():
            if found.state is not InstanceState.PENDING:
                continue
            if self._clock.wall() - found.started >= self.pending:
                self._instances[instance_id] = self._arrived(found)

    def _arrived(self, found: Instance) -> Instance:
        if self.crashes_at_once:
            return replace(found, state=InstanceState.FAILED, reason="it ended with exit code 1")
        pool = self._pools[found.id]
        is_prestarted = found.id in self._prestarted
        spec = ReplicaSpec(
            url=self._url_of(found.id),
            id=found.id,
            role=pool.role,
            version=pool.version,
            labels=pool.labels,
            price=pool.price,
        )
        state = InstanceState.PRESTARTED if is_prestarted else InstanceState.RUNNING
        return replace(found, state=state, spec=spec)
