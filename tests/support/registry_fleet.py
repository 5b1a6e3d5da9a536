"""A registry of replicas on a fake clock, for the tests of who can serve."""

from tests.support.fake_clock import FakeClock

from headrace.config.fleet.gateway import TimeoutConfig
from headrace.config.fleet.health import HealthConfig
from headrace.config.fleet.replicas import ReplicaSpec
from headrace.core.errors import ConfigError
from headrace.core.stats import ReplicaState
from headrace.fleet.backends.registry import backend_for
from headrace.fleet.registry import Registry
from headrace.fleet.replica import Replica, Report
from headrace.fleet.upstream.pool import Pool, address_of

REPORT = Report(state=ReplicaState.READY, models=("m",))


class Fleet:
    """A registry on a fake clock; replicas are ready when a test says so."""

    def __init__(self, **health: object) -> None:
        self.clock = FakeClock()
        self.health = HealthConfig(**health)
        self.num_changes = 0
        self.registry = Registry(self.health, self.clock, self._make)
        self.registry.on_change = self._changed

    def _changed(self) -> None:
        self.num_changes += 1

    def _make(self, spec: ReplicaSpec) -> Replica:
        if spec.version == "broken":
            raise ConfigError("cannot be made")
        pool = Pool(address_of(spec.url), TimeoutConfig(), max_idle=1, max_buffer=1000)
        return Replica(spec, backend_for(spec), pool, self.health)

    def add(self, *names: str, **options: object) -> list[Replica]:
        specs = [spec(name, **options) for name in names]
        self.registry.reconcile(specs)
        for replica in self.registry:
            replica.report = REPORT
            replica.ready_since = self.clock.monotonic()
        return list(self.registry)

    def serving(self) -> list[str]:
        return [replica.id for replica in self.registry.serving("m")]

    def fail(self, replica: Replica, times: int = 5) -> None:
        for _ in range(times):
            replica.breaker.note_failure(self.clock.monotonic())


def spec(name: str, **options: object) -> ReplicaSpec:
    return ReplicaSpec(url=f"http://{name}:1", id=name, **options)
