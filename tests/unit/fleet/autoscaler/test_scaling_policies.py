"""Each policy by a table: what it sees, and how many replicas that work takes."""

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.support.pool_signals import nothing_told, signals

from headrace.config.fleet.scaling import (
    Day,
    Objectives,
    PolicyKind,
    QueueTargets,
    ScalingConfig,
    ScheduleRule,
    SlotTargets,
    TokenTargets,
)
from headrace.fleet.autoscaler.need import Scene, replicas_down, replicas_up
from headrace.fleet.autoscaler.policies import schedule
from headrace.fleet.autoscaler.policies.choose import POLICIES
from headrace.fleet.autoscaler.values import Signals

SLO = Objectives(ttft=1.0, tpot=0.1, margin=0.8, idle_use=0.2)
CONFIG = ScalingConfig(
    tolerance=0.1,
    down_margin=0.85,
    queue=QueueTargets(per_replica=4, wait=1.0),
    slots=SlotTargets(use=0.5, kv=0.8),
    tokens=TokenTargets(load=0.5, prompt_weight=0.2),
    utilisation=0.5,
    slo=SLO,
    schedule=(ScheduleRule(replicas=3, start="08:00", end="18:00"),),
)


def scene(seen: Signals, wall: float = 0.0) -> Scene:
    return Scene(signals=seen, config=CONFIG, wall=wall)


#: Policy, signals, fewest replicas for it, most that going down may leave.
CASES: list[tuple[PolicyKind, Signals, int, int]] = [
    # Nothing waits: what runs must fit, 8 sequences into replicas of 8, with a margin.
    (PolicyKind.QUEUE, signals(), 1, 2),
    (PolicyKind.QUEUE, signals(num_running=16), 2, 3),
    # Three that have just come are no reason; one that has waited too long is; so is a replica's worth.
    (PolicyKind.QUEUE, signals(queue_size=3, queue_wait=0.5), 2, 2),
    (PolicyKind.QUEUE, signals(queue_size=1, queue_wait=1.5), 3, 4),
    (PolicyKind.QUEUE, signals(queue_size=8, queue_wait=0.1), 4, 6),
    (PolicyKind.QUEUE, signals(queue_size=1, num_ready=0, num_running=None, slots=None), 1, 2),
    # A few wait in every replica for their next step; more than its share in each is too many.
    (PolicyKind.QUEUE, signals(queue_size=8, num_waiting=8), 2, 3),
    (PolicyKind.QUEUE, signals(queue_size=16, num_waiting=16), 4, 6),
    (PolicyKind.SLOTS, signals(), 2, 3),
    (PolicyKind.SLOTS, signals(num_running=16), 4, 5),
    (PolicyKind.SLOTS, signals(num_running=0, kv_usage=0.9), 3, 3),
    (PolicyKind.SLOTS, signals(num_running=0, kv_usage=0.0), 0, 0),
    (PolicyKind.SLOTS, signals(queue_size=8), 4, 5),
    (PolicyKind.TOKENS_PER_SECOND, signals(capacity_tokens_per_second=100.0), 2, 3),
    (PolicyKind.TOKENS_PER_SECOND, signals(capacity_tokens_per_second=20.0), 10, 12),
    # Not seen full yet: by slots.
    (PolicyKind.TOKENS_PER_SECOND, signals(num_running=16), 4, 5),
    # The rate says little, but requests wait, or very long answers still run.
    (PolicyKind.TOKENS_PER_SECOND,
     signals(capacity_tokens_per_second=1000.0, queue_size=1, queue_wait=5.0), 3, 4),
    (PolicyKind.TOKENS_PER_SECOND,
     signals(capacity_tokens_per_second=1000.0, num_running=14), 2, 3),
    (PolicyKind.UTILISATION, signals(utilisation=0.5), 2, 3),
    (PolicyKind.UTILISATION, signals(utilisation=0.9), 4, 5),
    (PolicyKind.SLO, signals(ttft_p95=0.5, tpot_p95=0.05), 1, 2),
    (PolicyKind.SLO, signals(ttft_p95=0.9, num_ready=4, slots=32), 4, 5),
    (PolicyKind.SLO, signals(ttft_p95=1.5), 3, 4),
    (PolicyKind.SLO, signals(ttft_p95=90.0), 4, 5),
    (PolicyKind.SLO, signals(ttft_p95=0.1, tpot_p95=0.19), 4, 5),
    # Slow although nearly nothing runs: replicas would not help.
    (PolicyKind.SLO, signals(ttft_p95=3.0, num_running=1), 1, 1),
    (PolicyKind.SLO, signals(ttft_p95=3.0, num_running=1, queue_size=1, queue_wait=2.0), 4, 5),
]  # fmt: skip


@pytest.mark.parametrize(("policy", "seen", "least", "most"), CASES)
def test_policies(policy: PolicyKind, seen: Signals, least: int, most: int) -> None:
    need = POLICIES[policy](scene(seen))
    assert need is not None
    assert (replicas_up(need, 0.1), replicas_down(need, 0.85)) == (least, most), need
    assert need.reason
    assert not need.reason.endswith(".")


@pytest.mark.parametrize("policy", [p for p in PolicyKind if p is not PolicyKind.SCHEDULE])
@pytest.mark.parametrize("seen", [nothing_told(), nothing_told(num_ready=0)])
def test_what_is_not_told_is_not_known(policy: PolicyKind, seen: Signals) -> None:
    assert POLICIES[policy](scene(seen)) is None


def test_attainment_below_its_objective_adds() -> None:
    config = ScalingConfig(policy=PolicyKind.SLO, slo=Objectives(attainment=0.9))
    for share, least in ((0.95, 1), (0.85, 3), (0.1, 4)):
        found = Scene(signals=signals(slo_attainment=share), config=config, wall=0.0)
        need = POLICIES[PolicyKind.SLO](found)
        assert need is not None
        assert replicas_up(need, 0.1) == least, share


def test_a_promise_without_exception_is_broken_by_one() -> None:
    config = ScalingConfig(policy=PolicyKind.SLO, slo=Objectives(attainment=1.0))
    need = POLICIES[PolicyKind.SLO](
        Scene(signals=signals(slo_attainment=0.999), config=config, wall=0.0)
    )
    assert need is not None
    assert replicas_up(need, 0.1) == 4


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


NIGHT = ScheduleRule(replicas=2, days=(Day.FRI,), start="22:00", end="06:00")
WORK = ScheduleRule(
    replicas=5, days=(Day.MON, Day.TUE, Day.WED, Day.THU, Day.FRI), start="08:00", end="18:00"
)


@pytest.mark.parametrize(
    ("time", "count"),
    [
        ("2026-11-30T08:00", 5),  # a Monday
        ("2026-11-30T07:59", 0),
        ("2026-11-30T17:59", 5),
        ("2026-11-30T18:00", 0),
        ("2026-11-28T12:00", 0),  # a Saturday
        ("2026-11-27T22:00", 2),  # Friday night
        ("2026-11-28T05:59", 2),
        ("2026-11-28T06:00", 0),
        ("2026-11-27T05:00", 0),  # Thursday's night has no rule
    ],
)
def test_schedules(time: str, count: int) -> None:
    assert schedule.floor(ScalingConfig(schedule=(NIGHT, WORK)), at(time))[0] == count


def test_schedules_go_by_their_time_zone() -> None:
    config = ScalingConfig(schedule=(WORK,), timezone="Asia/Tokyo")
    assert schedule.floor(config, at("2026-11-29T23:30"))[0] == 5  # Monday 08:30 there


def test_the_largest_of_rules_counts() -> None:
    rules: tuple[Any, ...] = (ScheduleRule(replicas=1), WORK)
    assert schedule.floor(ScalingConfig(schedule=rules), at("2026-11-30T12:00"))[0] == 5
