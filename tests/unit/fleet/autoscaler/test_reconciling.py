"""From what there is to what is to be done: a table, and rollouts step by step."""

from typing import Any

import pytest
from msgspec.structs import replace

from headrace.config.fleet.pools import PoolConfig
from headrace.config.fleet.scaling import AutoscalerConfig, RolloutConfig
from headrace.fleet.autoscaler import rollout as plans
from headrace.fleet.autoscaler.actions import Action, Drain, Park, Start, Stop, Undrain, Wake
from headrace.fleet.autoscaler.backoff import Backoff
from headrace.fleet.autoscaler.members import Facts, Member, Phase
from headrace.fleet.autoscaler.reconcile import Wanted, reconcile
from headrace.fleet.autoscaler.rollout import Rollout, targets
from headrace.fleet.drivers.protocol import Instance, InstanceState
from headrace.fleet.drivers.revision import revision_of

POOL = PoolConfig(name="chat", model="m")
NOW = revision_of(POOL)
OLD = "000000000000"
CONFIG = AutoscalerConfig(start_timeout=100.0, unready_timeout=50.0, drain_timeout=60.0)


def member(
    name: str, phase: Phase, *, since: float = 990.0, revision: str = NOW, **facts: Any
) -> Member:
    state = {Phase.FAILED: InstanceState.FAILED, Phase.WARM: InstanceState.PRESTARTED}
    instance = Instance(
        id=name, pool="chat", version="", revision=revision,
        state=state.get(phase, InstanceState.RUNNING), started=since,
    )  # fmt: skip
    return Member(instance=instance, phase=phase, since=since, facts=Facts(**facts))


def done(
    members: list[Member], count: int, *, draining: tuple[str, ...] = (), **more: Any
) -> list[str]:
    wanted = Wanted(
        pool=POOL, revision=NOW, counts={NOW: count}, configs={NOW: POOL},
        draining=frozenset(draining),
    )  # fmt: skip
    return [_said(a) for a in reconcile(replace(wanted, **more), members, CONFIG, 1000.0)]


def _said(action: Action) -> str:
    match action:
        case Start():
            return "prestart" if action.prestarted else "start"
        case Wake() | Drain() | Undrain() | Park() | Stop():
            return f"{type(action).__name__.lower()} {action.instance_id}"


READY, STARTING, DRAINING, WARM = Phase.READY, Phase.STARTING, Phase.DRAINING, Phase.WARM


@pytest.mark.parametrize(
    ("members", "count", "expected"),
    [
        ([], 2, ["start", "start"]),
        ([member("a", READY), member("b", STARTING)], 2, []),
        ([member("a", READY), member("b", STARTING)], 3, ["start"]),
        # Down: what has not served at once, then those with least to do, by draining.
        ([member("a", READY), member("b", STARTING)], 1, ["stop b"]),
        ([member("a", READY, num_requests=5), member("b", READY, num_requests=1)], 1, ["drain b"]),
        ([member("a", READY), member("b", Phase.UNREADY)], 1, ["drain b"]),
        # What failed is cleared away and replaced.
        ([member("a", Phase.FAILED)], 1, ["stop a", "start"]),
        ([member("a", STARTING, since=800.0)], 1, ["stop a", "start"]),
        ([member("a", Phase.UNREADY, since=940.0)], 1, ["stop a", "start"]),
        ([member("a", Phase.UNREADY, since=960.0)], 1, []),
        # One that is stopping is neither there nor in the way.
        ([member("a", Phase.STOPPING)], 1, ["start"]),
        # Warm ones first.
        ([member("w", WARM)], 2, ["wake w", "start"]),
        # Another revision goes, whatever else.
        ([member("a", READY, revision=OLD), member("b", READY)], 1, ["drain a"]),
    ],
)
def test_actions(members: list[Member], count: int, expected: list[str]) -> None:
    assert done(members, count) == expected


@pytest.mark.parametrize(
    ("age", "requests", "expected"),
    [(0.5, 0, []), (10.0, 0, ["stop a"]), (10.0, 3, []), (61.0, 3, ["stop a"])],
)
def test_what_drains_is_stopped_when_it_is_done_or_late(
    age: float, requests: int, expected: list[str]
) -> None:
    members = [member("a", DRAINING, since=1000.0 - age, num_requests=requests)]
    assert done(members, 0, draining=("a",)) == expected


def test_what_an_operator_drains_is_left_alone_and_replaced() -> None:
    assert done([member("a", DRAINING)], 1) == ["start"]


def test_what_still_drains_is_brought_back_first() -> None:
    members = [member("a", DRAINING, num_requests=2), member("w", WARM)]
    assert done(members, 1, draining=("a",)) == ["undrain a", "stop w"]
    assert done(members, 2, draining=("a",), num_warm=1)[:2] == ["undrain a", "wake w"]


def test_the_warm_pool_is_filled_by_what_has_drained_and_by_new_ones() -> None:
    drained = member("a", DRAINING)
    assert done([drained], 0, draining=("a",), num_warm=2) == ["park a", "prestart"]
    assert done([member("w", WARM)], 0, num_warm=1) == []
    assert done([member("v", WARM), member("w", WARM)], 0, num_warm=1) == ["stop w"]
    assert done([member("w", WARM, revision=OLD)], 0, num_warm=1) == ["stop w", "prestart"]
    assert done([member("w", Phase.WARMING)], 0, num_warm=1) == []
    assert done([member("w", Phase.WARMING)], 1, num_warm=1) == ["start"]


def test_failures_hold_starts_back() -> None:
    waiting = Backoff(num_failures=1, until=1001.0)
    assert done([], 3, backoff=waiting) == []
    over = Backoff(num_failures=3, until=999.0)
    assert done([], 3, backoff=over) == ["start"]
    assert done([member("a", STARTING)], 3, backoff=over) == []
    assert done([], 1, num_warm=1, warm_backoff=waiting) == ["start"]


def test_backoff_doubles_and_is_bounded() -> None:
    backoff, waits = Backoff(), []
    for _ in range(40):
        backoff = backoff.failed(0.0, "exit code 1", 2.0, 60.0)
        waits.append(backoff.until)
    assert waits[:6] == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0]
    assert waits[-1] == 60.0
    assert backoff.is_crash_loop
    assert not backoff.stable().is_crash_loop


def test_a_revision_that_nobody_knows_is_not_started() -> None:
    assert done([], 2, counts={OLD: 2}) == []


# -- rollouts ------------------------------------------------------------------------------------------


def run(members: list[Member]) -> dict[str, int]:
    return targets(Rollout(old=OLD, new=NOW), members, 3, RolloutConfig(surge=1))


def some(count: int, revision: str, phase: Phase = READY, **facts: Any) -> list[Member]:
    return [
        member(f"{revision[0]}{phase[0]}{n}", phase, revision=revision, **facts)
        for n in range(count)
    ]


def test_a_rollout_step_by_step() -> None:
    assert run(some(3, OLD)) == {NOW: 1, OLD: 3}
    assert run(some(3, OLD) + some(1, NOW, STARTING)) == {NOW: 1, OLD: 3}
    # The one that is to leave is still there, and counts until it has gone.
    assert run(some(3, OLD) + some(1, NOW)) == {NOW: 1, OLD: 2}
    assert run(some(2, OLD) + some(1, OLD, DRAINING) + some(1, NOW)) == {NOW: 1, OLD: 2}
    assert run(some(2, OLD) + some(1, NOW)) == {NOW: 2, OLD: 2}
    assert run(some(1, OLD) + some(2, NOW) + some(1, NOW, STARTING)) == {NOW: 3, OLD: 1}
    assert run(some(1, OLD) + some(3, NOW)) == {NOW: 3, OLD: 0}


def test_more_are_of_the_new_revision() -> None:
    assert run(some(1, OLD)) == {NOW: 3, OLD: 1}


def test_a_rollout_is_given_up_for_failed_starts_and_failed_requests() -> None:
    config = RolloutConfig(max_failed_starts=2, min_requests=20, max_error_rate=0.05)
    rollout = Rollout(old=OLD, new=NOW)
    old = some(2, OLD, num_sent=1000, num_errors=10)
    assert not plans.judged(rollout, old, config).is_back
    twice = plans.with_failure(plans.with_failure(rollout))
    assert plans.judged(twice, old, config).is_back
    for errors, sent, is_back in ((2, 19, False), (1, 20, False), (2, 20, True)):
        new = some(1, NOW, num_sent=sent, num_errors=errors)
        found = plans.judged(rollout, old + new, config)
        assert found.is_back is is_back, (errors, sent)
        assert bool(found.reason) is is_back


def test_going_back_keeps_what_serves_until_the_old_ones_do() -> None:
    back = Rollout(old=OLD, new=NOW, is_back=True)
    members = some(1, OLD) + some(2, NOW) + some(1, NOW, STARTING)
    assert targets(back, members, 3, RolloutConfig(surge=1)) == {OLD: 1, NOW: 2}
    assert targets(back, some(3, OLD) + some(1, NOW), 3, RolloutConfig()) == {OLD: 3, NOW: 0}
    assert not plans.is_over(back, some(3, OLD))


def test_a_rollout_begins_with_another_revision_and_ends_without() -> None:
    assert plans.begun(None, some(2, NOW), NOW) is None
    begun = plans.begun(None, some(2, OLD) + some(1, NOW), NOW)
    assert begun == Rollout(old=OLD, new=NOW)
    assert not plans.is_over(begun, some(1, OLD, DRAINING) + some(2, NOW))
    assert plans.is_over(begun, some(2, NOW))
    # The configuration was put back by its operator.
    given_up = Rollout(old=OLD, new=NOW, is_back=True)
    assert plans.begun(given_up, some(2, OLD), NOW) is given_up
    assert plans.begun(given_up, some(2, OLD), OLD) is None
