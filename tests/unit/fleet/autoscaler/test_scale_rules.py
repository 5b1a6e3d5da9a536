"""Bounds, hysteresis, delays, steps, sleep: one rule a test."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.pool_signals import idle, nothing_told, signals

from headrace.config.fleet.scaling import (
    Objectives,
    PolicyKind,
    ScalingConfig,
    ScheduleRule,
    TokenTargets,
)
from headrace.fleet.autoscaler.scale import Bounds, ScalingState, decide
from headrace.fleet.autoscaler.values import Decision, Signals

#: 100 tokens/s a replica at its target.
TOKENS = TokenTargets(replica_tokens_per_second=100.0, load=1.0)


class Loop:
    """One pool, looked at again and again; nothing is started by it."""

    def __init__(self, *, least: int = 1, most: int = 10, **config: Any) -> None:
        usual: dict[str, Any] = {"down_delay": 60.0, "down_pause": 10.0, "zero_delay": 90.0}
        usual["slo"] = Objectives(ttft=5.0)
        self.config = ScalingConfig(tokens=TOKENS, **{**usual, **config})
        self.bounds = Bounds("chat", least, most)
        self.state = ScalingState()

    def at(self, time: float, seen: Signals | None = None, **changes: Any) -> Decision:
        found = replace(seen or signals(**changes), at=1000.0 + time)
        decision, self.state = decide(
            found, self.state, self.config, self.bounds, wall=2_000_000.0 + time
        )
        return decision

    def settled(self, ready: int) -> None:
        """It has looked on for as long as its delays go back."""
        for time in range(-100, 0, 10):
            self.at(time, num_ready=ready, incoming_tokens_per_second=100.0 * ready)


def busy(tokens: float, ready: int = 2, **more: Any) -> dict[str, Any]:
    return {"num_ready": ready, "num_running": 0, "incoming_tokens_per_second": tokens, **more}


def test_up_at_once_and_by_the_tolerance() -> None:
    loop = Loop()
    assert loop.at(0, **busy(200.0)).desired == 2
    assert loop.at(1, **busy(219.0)).desired == 2  # within a tenth
    up = loop.at(2, **busy(400.0))
    assert (up.current, up.desired, up.policy) == (2, 4, "tokens_per_second")
    assert "400 tokens/s" in up.reason


def test_what_is_pending_counts() -> None:
    loop = Loop()
    assert loop.at(0, **busy(400.0, num_pending=2)).desired == 4
    assert loop.at(1, **busy(400.0, num_pending=1)).desired == 4


def test_down_late_and_step_by_step() -> None:
    loop = Loop()
    loop.settled(5)
    first = loop.at(0, **busy(100.0, ready=5))
    assert (first.desired, first.limited_by) == (5, "cooldown")
    assert loop.at(45, **busy(100.0, ready=5)).desired == 5
    assert loop.at(70, **busy(100.0, ready=5)).desired == 4
    paused = loop.at(75, **busy(100.0, ready=4))
    assert (paused.desired, paused.limited_by) == (4, "cooldown")
    assert loop.at(80, **busy(100.0, ready=4)).desired == 3


def test_a_short_rise_in_between_starts_the_delay_anew() -> None:
    loop = Loop()
    loop.settled(4)
    loop.at(0, **busy(100.0, ready=4))
    loop.at(50, **busy(400.0, ready=4))
    assert loop.at(70, **busy(100.0, ready=4)).desired == 4
    assert loop.at(111, **busy(100.0, ready=4)).desired == 3


def test_down_only_if_those_that_stay_have_room() -> None:
    loop = Loop()
    loop.settled(3)
    for time in range(0, 200, 10):  # 90 % of two
        assert loop.at(time, **busy(180.0, ready=3)).desired == 3
    for time in range(200, 270, 10):  # 80 % of two
        last = loop.at(time, **busy(160.0, ready=3))
    assert last.desired == 2


def test_a_new_controller_takes_nothing_away_at_once() -> None:
    loop = Loop()
    assert loop.at(0, **busy(10.0, ready=5)).desired == 5
    assert loop.at(59, **busy(10.0, ready=5)).desired == 5
    assert loop.at(61, **busy(10.0, ready=5)).desired == 4


def test_up_delay() -> None:
    loop = Loop(up_delay=20.0)
    waiting = loop.at(0, **busy(300.0))
    assert (waiting.desired, waiting.limited_by) == (2, "delay")
    loop.at(10, **busy(200.0))
    assert loop.at(15, **busy(300.0)).desired == 2
    assert loop.at(35, **busy(300.0)).desired == 3


def test_steps_up_are_bounded_and_large_pools_may_double() -> None:
    loop = Loop(most=100, max_step_up=4)
    big = loop.at(0, **busy(5000.0, ready=2))
    assert (big.desired, big.limited_by) == (6, "step")
    assert loop.at(1, **busy(9000.0, ready=20)).desired == 40


def test_bounds_are_kept_whatever_is_wanted() -> None:
    loop = Loop(least=2, most=3)
    up = loop.at(0, **busy(900.0))
    assert (up.desired, up.limited_by) == (3, "max_replicas")
    low = loop.at(1, **busy(0.0, ready=0))
    assert (low.desired, low.limited_by) == (2, "min_replicas")
    # The bound was lowered: at once, whatever delays say.
    assert loop.at(2, **busy(700.0, ready=7)).desired == 3


def test_the_least_is_started_in_one_step() -> None:
    loop = Loop(least=9, max_step_up=1)
    assert loop.at(0, nothing_told(num_ready=0)).desired == 9


def test_missing_data_takes_nothing_away() -> None:
    loop = Loop()
    loop.settled(3)
    for time in range(0, 1000, 50):
        decision = loop.at(time, nothing_told(num_ready=3))
        assert (decision.desired, decision.limited_by) == (3, "missing_data")
    for time in range(1000, 2000, 50):  # two of three tell that they are idle
        quiet = idle(float(time), num_ready=3, num_reporting=2, num_running=0)
        assert loop.at(time, quiet).desired == 3


def test_one_that_does_not_tell_does_not_keep_others_from_coming() -> None:
    assert Loop().at(0, **busy(500.0, num_reporting=1)).desired == 5


def test_to_zero_only_when_it_is_known_that_nothing_happens() -> None:
    loop = Loop(least=0)
    loop.settled(1)
    for time in range(0, 200, 10):
        early = loop.at(time, idle(80.0, num_ready=1))
        assert (early.desired, early.limited_by) == (1, "cooldown")
    for awake in (
        idle(100.0, num_ready=1, queue_size=1),
        idle(100.0, num_ready=1, num_running=1),
        idle(100.0, num_ready=1, num_running=None),
        idle(100.0, num_ready=1, idle_seconds=None),
        idle(100.0, num_ready=1, num_reporting=0),
    ):
        assert loop.at(210, awake).desired >= 1, awake
    asleep = loop.at(300, idle(91.0, num_ready=1))
    assert asleep.desired == 0
    assert asleep.reason == "no request for 91 s"


def test_delays_before_sleep_run_together() -> None:
    """Several go to sleep at once: nothing has come for `zero_delay`, so no step has to be tried out."""
    loop = Loop(least=0)
    loop.settled(4)
    assert loop.at(200, idle(91.0, num_ready=4)).desired == 0


def test_a_pool_that_must_not_sleep_does_not() -> None:
    loop = Loop(least=1)
    loop.settled(1)
    assert loop.at(1000, idle(1000.0, num_ready=1)).desired == 1


@pytest.mark.parametrize("policy", [p for p in PolicyKind if p is not PolicyKind.SLO])
def test_a_request_wakes_a_sleeping_pool_at_once(policy: PolicyKind) -> None:
    rule = ScheduleRule(replicas=0)
    loop = Loop(least=0, policy=policy, up_delay=60.0, schedule=(rule,))
    sleeping = nothing_told(num_ready=0)
    assert loop.at(0, sleeping).desired == 0
    woken = loop.at(1, nothing_told(num_ready=0, queue_size=1, queue_wait=0.0))
    assert woken.desired == 1
    # While it starts, nothing changes; when it is asked for no longer, it stays as long as ever.
    assert loop.at(2, nothing_told(num_ready=0, num_pending=1, queue_size=1)).desired == 1
    assert loop.at(3, nothing_told(num_ready=0, num_pending=1)).desired == 1


def test_a_schedule_is_a_floor_under_every_policy() -> None:
    loop = Loop(schedule=(ScheduleRule(replicas=6),), max_step_up=1)
    floor = loop.at(0, **busy(100.0))
    assert floor.desired == 6
    assert "schedule" in floor.reason
    assert loop.at(1, **busy(900.0, ready=6)).desired == 9


def test_what_is_remembered_is_bounded() -> None:
    loop = Loop(down_delay=100_000.0)
    for time in range(2000):
        loop.at(time, **busy(500.0 - 0.2 * time, ready=9))
    assert len(loop.state.wishes) <= 64


def after_a_burst(loop: Loop, ready: int = 5, **later: Any) -> list[Decision]:
    """A burst that takes five comes once; then there is work for one, for two hours."""
    loop.settled(1)
    up = loop.at(0, **busy(50.0, ready=1, burst_tokens_per_second=500.0))
    assert up.desired == ready
    assert "within the TTFT" in up.reason
    found, current = [], ready
    for time in range(60, 7200, 30):
        seen = {"burst_tokens_per_second": 0.0, **later}
        found.append(loop.at(time, **busy(50.0, ready=current, **seen)))
        current = found[-1].desired
    return found


def test_what_a_burst_took_is_kept_for_an_hour_and_goes_then() -> None:
    found = after_a_burst(Loop())
    within = [d for d in found if d.at < 2_003_600.0]
    assert {d.desired for d in within} == {5}
    assert (within[-1].limited_by, "a burst of the last 60 min took 5" in within[-1].reason) == (
        "burst",
        True,
    )
    assert found[-1].desired == 1


def test_bursts_may_be_forgotten_and_start_nothing_later() -> None:
    assert after_a_burst(Loop(burst_memory=0.0))[10].desired == 1
    loop = Loop()
    after_a_burst(loop)
    loop.at(7300, **busy(50.0, ready=1, burst_tokens_per_second=500.0))
    # It was lost meanwhile: what is remembered only keeps what there is.
    assert loop.at(7400, **busy(50.0, ready=1, burst_tokens_per_second=0.0)).desired == 1


def test_a_bound_that_was_lowered_holds_after_a_burst() -> None:
    loop = Loop()
    after_a_burst(loop)
    loop.at(7300, **busy(50.0, ready=1, burst_tokens_per_second=500.0))
    loop.bounds = Bounds("chat", 1, 3)
    assert loop.at(7400, **busy(50.0, ready=5, burst_tokens_per_second=0.0)).desired == 3


def test_a_pool_sleeps_whatever_bursts_took() -> None:
    loop = Loop(least=0)
    loop.settled(1)
    loop.at(0, **busy(50.0, ready=1, burst_tokens_per_second=500.0))
    assert loop.at(100, idle(91.0, num_ready=5, burst_tokens_per_second=0.0)).desired == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": PolicyKind.QUEUE},
        {"policy": PolicyKind.SLOTS},
        {"policy": PolicyKind.UTILISATION},
        {"slo": Objectives(tpot=0.1)},
    ],
)
def test_who_does_not_look_at_bursts_keeps_nothing_for_them(changes: dict[str, Any]) -> None:
    """Nor what was kept before the configuration was changed."""
    loop = Loop()
    loop.at(0, **busy(50.0, ready=1, burst_tokens_per_second=500.0))
    assert loop.state.bursts
    loop.config = replace(loop.config, **changes)
    loop.at(1, **busy(50.0, ready=1, burst_tokens_per_second=500.0, utilisation=0.1))
    assert loop.state.bursts == ()


@pytest.mark.parametrize(("requests", "desired"), [(1, 1), (3, 3), (50, 5), (None, 5)])
def test_no_request_is_shared_by_two(requests: int | None, desired: int) -> None:
    seen = busy(50.0, ready=1, burst_tokens_per_second=500.0, burst_requests=requests)
    assert Loop(max_step_up=10).at(0, **seen).desired == desired


def test_what_is_remembered_of_bursts_is_bounded() -> None:
    loop = Loop(burst_memory=100_000.0)
    for time in range(2000):
        loop.at(time, **busy(500.0, ready=9, burst_tokens_per_second=900_000.0 - 300.0 * time))
    assert len(loop.state.bursts) <= 64
