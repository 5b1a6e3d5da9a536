"""Who there is, and who can serve."""

import asyncio

import pytest
from msgspec.structs import replace
from tests.support.fake_clock import FakeClock
from tests.support.patience import PATIENCE

from headrace.config.fleet.gateway import TimeoutConfig
from headrace.config.fleet.health import HealthConfig
from headrace.config.fleet.replicas import Dialect, ReplicaSpec
from headrace.config.secret import Secret
from headrace.core.errors import ConfigError
from headrace.core.stats import ReplicaState
from headrace.fleet.backends.registry import backend_for
from headrace.fleet.breaker import Circuit
from headrace.fleet.probe import NotReadyError
from headrace.fleet.prober import Prober
from headrace.fleet.registry import Registry
from headrace.fleet.replica import Replica, Report, Standing
from headrace.fleet.upstream.failure import FailureKind, UpstreamError
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


def test_a_replica_keeps_what_it_has_through_reconciling():
    fleet = Fleet()
    a, b = fleet.add("a", "b")
    lease = a.lease(prefill_tokens=5, decode_tokens=5)
    fleet.registry.reconcile([spec("a", weight=3.0), spec("c")])
    assert fleet.registry.get("a") is a
    assert a.spec.weight == 3.0
    assert a.load.num_requests == 1
    assert fleet.registry.get("b") is None
    assert b.is_draining
    lease.close()


def test_nothing_changed_is_no_change():
    fleet = Fleet()
    fleet.add("a", "b")
    fleet.num_changes = 0
    fleet.registry.reconcile([spec("a"), spec("b")])
    assert fleet.num_changes == 0
    fleet.registry.reconcile([spec("a", labels={"x": "y"}), spec("b")])
    assert fleet.num_changes == 1


@pytest.mark.parametrize(
    "other",
    [
        {"url": "http://other:1"},
        {"dialect": Dialect.VLLM},
        {"api_key": Secret("k")},
        {"peer_token": Secret("k")},
    ],
)
def test_the_same_name_may_mean_another_server(other):
    fleet = Fleet()
    (old,) = fleet.add("a")
    lease = old.lease(prefill_tokens=1, decode_tokens=1)
    fleet.registry.reconcile([ReplicaSpec(**{"url": "http://a:1", "id": "a", **other})])
    assert fleet.registry.get("a") is not old
    assert old.is_draining
    fleet.registry.forget_idle()
    assert old in fleet.registry._leaving
    lease.close()
    fleet.registry.forget_idle()
    assert old not in fleet.registry._leaving


@pytest.mark.parametrize("bad", [[spec("a"), spec("a")], [spec("b"), spec("c", version="broken")]])
def test_a_bad_list_changes_nothing(bad):
    fleet = Fleet()
    before = fleet.add("a", "z")
    with pytest.raises(ConfigError):
        fleet.registry.reconcile(bad)
    assert list(fleet.registry) == before
    assert not any(replica.is_draining for replica in before)
    with pytest.raises(ConfigError):
        fleet.registry.add(spec("c", version="broken"))
    fleet.registry.reconcile([spec("a"), spec("z")])
    assert list(fleet.registry) == before


def test_what_an_operator_added_stays():
    fleet = Fleet()
    fleet.add("a")
    fleet.registry.add(spec("mine"))
    fleet.registry.reconcile([spec("b")])
    assert {replica.id for replica in fleet.registry} == {"b", "mine"}
    assert fleet.registry.remove("mine")
    assert {replica.id for replica in fleet.registry} == {"b"}
    assert not fleet.registry.remove("mine")


def test_a_listed_replica_that_is_removed_is_drained():
    fleet = Fleet()
    (a,) = fleet.add("a")
    assert fleet.registry.remove("a")
    assert a.standing(fleet.clock.monotonic()) is Standing.DRAINING
    fleet.registry.reconcile([spec("a")])
    assert a.is_draining
    assert fleet.serving() == []


def test_an_operators_change_of_a_listed_replica_is_taken_back():
    fleet = Fleet()
    fleet.add("a")
    fleet.registry.add(spec("a", weight=9.0))
    fleet.registry.remove("a")
    a = fleet.registry.get("a")
    assert a is not None
    assert a.spec.weight == 1.0
    assert not a.is_draining


def test_standing():
    fleet = Fleet()
    (a,) = fleet.add("a")
    now = fleet.clock.monotonic()
    assert a.standing(now) is Standing.READY
    fleet.fail(a)
    assert a.standing(now) is Standing.EJECTED
    a.report = Report(state=ReplicaState.DRAINING, models=("m",))
    assert a.standing(now) is Standing.DRAINING
    a.ready_since = None
    assert a.standing(now) is Standing.UNREADY
    a.report = None
    assert a.standing(now) is Standing.UNKNOWN


def test_the_last_healthy_one_is_never_ejected():
    fleet = Fleet()
    a, b = fleet.add("a", "b")
    fleet.fail(a)
    assert fleet.serving() == ["b"]
    fleet.fail(b)
    assert sorted(fleet.serving()) == ["a", "b"]
    b.ready_since = None  # its probes fail: that is no matter of failed requests
    assert fleet.serving() == ["a"]


def test_with_too_few_left_all_are_used():
    fleet = Fleet(panic_share=0.5)
    a, b, c, d = fleet.add("a", "b", "c", "d")
    fleet.fail(a)
    fleet.fail(b)
    assert fleet.serving() == ["c", "d"]
    fleet.fail(c)
    assert sorted(fleet.serving()) == ["a", "b", "c", "d"]
    assert d.standing(fleet.clock.monotonic()) is Standing.READY


def test_failures_of_one_moment_open_a_circuit_once():
    fleet = Fleet(breaker_open=5.0)
    (a,) = fleet.add("a")
    fleet.fail(a, times=60)  # as many streams as it had
    assert a.breaker.state(fleet.clock.monotonic()) is Circuit.OPEN
    fleet.clock.advance(5.0)
    assert a.breaker.state(fleet.clock.monotonic()) is Circuit.HALF_OPEN
    a.breaker.note_failure(fleet.clock.monotonic())
    fleet.clock.advance(9.9)
    assert a.breaker.state(fleet.clock.monotonic()) is Circuit.OPEN
    fleet.clock.advance(0.2)
    assert a.breaker.state(fleet.clock.monotonic()) is Circuit.HALF_OPEN


def test_a_slow_replica_is_told_by_work_and_not_by_time():
    fleet = Fleet(outlier_factor=3.0)
    a, b, c = fleet.add("a", "b", "c")
    a.latency.note_first_token(1.0, 1000)
    b.latency.note_first_token(10.0, 10_000)  # more to do, as fast
    assert fleet.registry.slowness([a, b, c]) == {}
    c.latency.note_first_token(4.0, 1000)
    assert fleet.registry.slowness([a, b, c]) == {"c": pytest.approx(4.0)}


def test_slow_start():
    fleet = Fleet(slow_start=10.0)
    (a,) = fleet.add("a")
    shares = []
    for _ in range(4):
        shares.append(round(a.share(fleet.clock.monotonic(), 10.0), 2))
        fleet.clock.advance(5.0)
    assert shares == [0.1, 0.55, 1.0, 1.0]


class Probing:
    """A prober whose looks are what a test says."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.answers: dict[str, Report | Exception] = {}
        self.numbers: list[int] = []
        self.looked = asyncio.Event()
        self.prober = Prober(fleet.registry, fleet.clock, self._probe)

    async def _probe(self, replica: Replica, patience: float, number: int) -> Report:
        self.numbers.append(number)
        self.looked.set()
        answer = self.answers.get(replica.id, REPORT)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def looks(self, count: int = 1) -> None:
        """Until so many more looks are over."""
        goal = len(self.numbers) + count
        async with asyncio.timeout(PATIENCE):
            while len(self.numbers) < goal:
                self.looked.clear()
                await self.looked.wait()
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_probes_decide_with_hysteresis():
    fleet = Fleet(probe_period=600.0, probe_failures=3, probe_successes=2)
    fleet.registry.reconcile([spec("a")])
    (a,) = fleet.registry
    probing = Probing(fleet)

    async def look(count):
        for _ in range(count):
            probing.prober.look_now(a)
            await probing.looks(1)

    probing.prober.sync()
    await probing.looks(1)
    assert a.standing(0.0) is Standing.UNREADY
    await look(1)
    assert a.standing(0.0) is Standing.READY
    probing.answers["a"] = UpstreamError(FailureKind.CONNECT, "refused")
    await look(2)
    assert a.ready_since is not None
    await look(1)
    assert a.ready_since is None
    assert "refused" in a.reason
    await probing.prober.close()


@pytest.mark.parametrize("error", [NotReadyError("loading"), ValueError("a bug")])
async def test_a_certain_word_counts_at_once(error):
    fleet = Fleet(probe_period=0.005, probe_failures=2)
    fleet.registry.reconcile([spec("a")])
    (a,) = fleet.registry
    probing = Probing(fleet)
    probing.prober.sync()
    await probing.looks(2)
    probing.answers["a"] = error
    await probing.looks(1 if isinstance(error, NotReadyError) else 3)
    assert a.ready_since is None
    await probing.looks(2)
    assert probing.numbers[-1] == 0  # whatever comes back is asked for everything
    probing.answers.clear()
    await probing.looks(2)
    assert a.ready_since is not None
    await probing.prober.close()


async def test_a_failed_request_brings_the_next_look():
    fleet = Fleet(probe_period=60.0)
    fleet.registry.reconcile([spec("a")])
    (a,) = fleet.registry
    probing = Probing(fleet)
    probing.prober.sync()
    await probing.looks(1)
    fleet.fail(a)
    assert a.standing(fleet.clock.monotonic()) is Standing.EJECTED
    probing.answers["a"] = NotReadyError("died")
    probing.prober.look_now(a)
    await probing.looks(1)
    assert a.ready_since is None
    probing.answers.clear()
    probing.prober.look_now(a)
    await probing.looks(1)
    assert a.standing(fleet.clock.monotonic()) is Standing.READY  # a new one: tried at once
    await probing.prober.close()


async def test_nobody_there_is_known_at_once():
    fleet = Fleet(probe_period=60.0)
    fleet.registry.reconcile([spec("a")])
    (a,) = fleet.registry
    probing = Probing(fleet)
    probing.prober.sync()
    await probing.looks(1)
    probing.prober.note_unreachable(a, "refused")
    assert a.ready_since is None
    await probing.looks(1)
    assert a.ready_since is not None
    fleet.registry.reconcile([])
    probing.prober.sync()
    probing.prober.note_unreachable(a, "refused")  # it has left: nobody minds
    await probing.prober.close()


async def test_tasks_come_and_go_with_replicas():
    fleet = Fleet(probe_period=0.005)
    probing = Probing(fleet)
    fleet.registry.on_change = probing.prober.sync
    fleet.registry.reconcile([spec("a"), spec("b")])
    await probing.looks(4)
    fleet.registry.reconcile([spec("b"), spec("c")])
    await probing.looks(4)
    names = {t.get_name() for t in asyncio.all_tasks() if t.get_name().startswith("probe")}
    assert names == {"probe b", "probe c"}
    await probing.prober.close()
    await asyncio.sleep(0)
    assert not any(t.get_name().startswith("probe") for t in asyncio.all_tasks())


async def test_a_replica_in_doubt_is_asked_for_everything():
    """It has just said that it does not have a model: what it told a moment ago is not true any more."""
    fleet = Fleet(probe_period=60)
    fleet.registry.reconcile([spec("a")])
    (a,) = fleet.registry
    probing = Probing(fleet)
    probing.prober.sync()
    await probing.looks()
    probing.prober.look_now(a)
    await probing.looks()
    assert probing.numbers == [0, 1]
    probing.prober.look_now(a, at_all=True)
    await probing.looks()
    assert probing.numbers == [0, 1, 0]
    probing.prober.look_now(a)
    await probing.looks()
    assert probing.numbers == [0, 1, 0, 3]
    await probing.prober.close()


async def test_probes_go_on_whoever_fails_to_hear_of_them():
    fleet = Fleet(probe_period=0.002)

    def fail() -> None:
        raise RuntimeError("a listener")

    fleet.registry.reconcile([spec("a")])
    fleet.registry.on_change = fail
    probing = Probing(fleet)
    probing.prober.sync()
    await probing.looks(3)
    await probing.prober.close()


async def test_a_replica_that_runs_for_less_long_than_before_has_started_again():
    """Between two looks, so that nothing else shows it."""
    fleet = Fleet(probe_period=0.002)
    fleet.registry.reconcile([spec("a")])
    (a,) = fleet.registry
    probing, restarted = Probing(fleet), []
    probing.prober.on_restart = restarted.append
    probing.prober.sync()
    for uptime in (10.0, None, 11.0, 11.0, None, 12.0):
        probing.answers["a"] = replace(REPORT, uptime=uptime)
        await probing.looks(2)
    assert not restarted
    probing.answers["a"] = replace(REPORT, uptime=0.5)
    await probing.looks(3)
    assert restarted == [a]
    await probing.prober.close()
