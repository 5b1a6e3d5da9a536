"""Who there is, and who can serve."""

import pytest
from tests.support.registry_fleet import Fleet, spec

from headrace.config.fleet.replicas import Dialect, ReplicaSpec
from headrace.config.secret import Secret
from headrace.core.errors import ConfigError
from headrace.core.stats import ReplicaState
from headrace.fleet.breaker import Circuit
from headrace.fleet.replica import Report, Standing


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
