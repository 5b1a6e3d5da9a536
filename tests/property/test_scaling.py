"""Whatever the load does: bounds hold, more load never means fewer, constant load never flaps, and nothing is taken away
for want of data."""

from itertools import pairwise
from math import ceil
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.pool_signals import signals

from headrace.config.fleet.scaling import (
    Objectives,
    PolicyKind,
    ScalingConfig,
    ScheduleRule,
    TokenTargets,
)
from headrace.fleet.autoscaler.scale import Bounds, ScalingState, decide
from headrace.fleet.autoscaler.values import Signals

SLOTS = 8
PER_REPLICA = 100.0
SHARE = st.none() | st.floats(0.0, 1.0)
RATE = st.none() | st.floats(0.0, 5000.0)
POLICIES = st.sampled_from(list(PolicyKind))


def config_of(policy: PolicyKind, **more: Any) -> ScalingConfig:
    usual: dict[str, Any] = {
        "down_delay": 60.0,
        "slo": Objectives(ttft=1.0, tpot=0.1, attainment=0.99),
        "schedule": (ScheduleRule(replicas=1),),
        "tokens": TokenTargets(replica_tokens_per_second=PER_REPLICA, load=0.7),
    }
    return ScalingConfig(policy=policy, **{**usual, **more})


@st.composite
def any_signals(draw: st.DrawFn) -> Signals:
    """All combinations of told and not told."""
    ready = draw(st.integers(0, 12))
    return Signals(
        at=0.0,
        window=60.0,
        num_ready=ready,
        num_pending=draw(st.integers(0, 6)),
        num_warm=0,
        num_reporting=draw(st.integers(0, ready)),
        queue_size=draw(st.integers(0, 500)),
        queue_wait=draw(st.none() | st.floats(0.0, 300.0)),
        num_running=draw(st.none() | st.integers(0, 200)),
        slots=draw(st.none() | st.integers(0, 200)),
        kv_usage=draw(SHARE),
        incoming_tokens_per_second=draw(RATE),
        burst_tokens_per_second=draw(RATE),
        capacity_tokens_per_second=draw(st.none() | st.floats(1.0, 1000.0)),
        arrivals_per_second=draw(RATE),
        input_tokens=draw(RATE),
        output_tokens=draw(RATE),
        idle_seconds=draw(st.none() | st.floats(0.0, 1000.0)),
        ttft_p95=draw(st.none() | st.floats(0.0, 100.0)),
        tpot_p95=draw(st.none() | st.floats(0.0, 1.0)),
        slo_attainment=draw(SHARE),
        utilisation=draw(SHARE),
    )


@given(
    policy=POLICIES,
    looks=st.lists(st.tuples(st.floats(0.1, 100.0), any_signals()), min_size=1, max_size=12),
    least=st.integers(0, 4),
    extra=st.integers(1, 8),
)
@settings(max_examples=150)
def test_bounds_hold_and_nothing_goes_for_want_of_data(
    policy: PolicyKind, looks: list[tuple[float, Signals]], least: int, extra: int
) -> None:
    config, bounds = config_of(policy), Bounds("chat", least, least + extra)
    state, now = ScalingState(), 1000.0
    for pause, seen in looks:
        now += pause
        seen = replace(seen, at=now)
        decision, state = decide(seen, state, config, bounds, wall=now)
        assert bounds.least <= decision.desired <= bounds.most
        current = seen.num_ready + seen.num_pending
        assert decision.current == current
        assert decision.reason
        if seen.num_reporting < seen.num_ready and current <= bounds.most:
            assert decision.desired >= current
        if seen.queue_size:
            assert decision.desired >= 1
        if decision.desired < min(current, bounds.most):
            is_step = decision.desired >= current - config.max_step_down
            assert is_step or decision.desired == 0
        if decision.desired > current:
            floor = max(least, 1, current + max(config.max_step_up, current))
            assert decision.desired <= floor
        if decision.desired == 0 and current:
            assert seen.num_running in (0, None)
            assert seen.idle_seconds is not None
            assert seen.idle_seconds >= config.zero_delay


@given(
    bursts=st.lists(
        st.tuples(st.floats(10.0, 900.0), st.none() | st.floats(0.0, 1500.0)),
        min_size=1,
        max_size=40,
    ),
    memory=st.floats(0.0, 4000.0),
)
@settings(max_examples=100)
def test_never_below_what_bursts_took_and_all_goes_on_an_idle_day(
    bursts: list[tuple[float, float | None]], memory: float
) -> None:
    """With replicas that start at once. A burst that is not told of counts as none, and takes nothing away early."""
    config = config_of(PolicyKind.TOKENS_PER_SECOND, burst_memory=memory)
    bounds, state, now, current = Bounds("chat", 1, 20), ScalingState(), 1000.0, 1
    took: list[tuple[float, int]] = []

    def look(burst: float | None, **more: Any) -> None:
        nonlocal state, current
        seen = signals(
            at=now, num_ready=current, num_running=0, burst_tokens_per_second=burst, **more
        )
        decision, state = decide(seen, state, config, bounds, wall=now)
        current = decision.desired

    for pause, burst in bursts:
        now += pause
        for _ in range(4):  # steps up are bounded
            look(burst, incoming_tokens_per_second=0.0)
        if burst is not None:
            took.append((now, ceil(burst / PER_REPLICA / 1.1 - 1e-9)))
        wanted = max((count for at, count in took if at > now - memory), default=0)
        assert current >= min(20, wanted)
    for _ in range(300):
        now += 60.0
        look(0.0, incoming_tokens_per_second=0.0)
    assert current == 1


LOADS = ("queue_size", "num_running", "incoming_tokens_per_second", "burst_tokens_per_second", "utilisation", "ttft_p95",
         "tpot_p95", "kv_usage", "queue_wait")  # fmt: skip


@given(
    policy=POLICIES,
    seen=any_signals(),
    more=st.fixed_dictionaries({name: st.floats(0.0, 50.0) for name in LOADS}),
)
@settings(max_examples=300)
def test_more_load_never_means_fewer(
    policy: PolicyKind, seen: Signals, more: dict[str, float]
) -> None:
    """With every signal at least as high as before, of those that were told."""
    grown: dict[str, Any] = {}
    for name, extra in more.items():
        old = getattr(seen, name)
        if old is not None:
            grown[name] = old + (int(extra) if isinstance(old, int) else extra)
    for name in ("utilisation", "kv_usage"):
        if name in grown:
            grown[name] = min(1.0, grown[name])
    config, bounds = config_of(policy), Bounds("chat", 0, 50)
    past = ScalingState(since=-1000.0)
    first, _ = decide(seen, past, config, bounds, wall=0.0)
    second, _ = decide(replace(seen, **grown), past, config, bounds, wall=0.0)
    # Where no need could be told at all, all was kept; a queue that comes then tells one, which may be less.
    could_not_tell = first.limited_by == "missing_data" and seen.num_reporting >= seen.num_ready
    assume(not could_not_tell)
    assert second.desired >= first.desired, (first, second)


class Pool:
    """Replicas of one kind under a constant load, as their gateway would tell of it."""

    def __init__(self, load: float, ready: int, start_seconds: float) -> None:
        """`load` in replicas that would be exactly full."""
        self.load = load
        self.ready = ready
        self.start_seconds = start_seconds
        self.pending: list[float] = []
        self.queue = 0.0

    def look(self, now: float, pause: float) -> Signals:
        self.ready += sum(at <= now for at in self.pending)
        self.pending = [at for at in self.pending if at > now]
        over = self.load - self.ready
        self.queue = max(0.0, self.queue + over * pause)
        running = min(SLOTS * self.ready, round(SLOTS * self.load))
        full = min(1.0, self.load / self.ready) if self.ready else 0.0
        return signals(
            at=now,
            num_ready=self.ready,
            num_pending=len(self.pending),
            queue_size=int(self.queue),
            queue_wait=self.queue / self.load if self.queue >= 1 and self.load else None,
            num_running=running if self.ready else None,
            slots=SLOTS * self.ready if self.ready else None,
            kv_usage=full if self.ready else None,
            incoming_tokens_per_second=self.load * PER_REPLICA,
            utilisation=full if self.ready else None,
            ttft_p95=0.1 / max(0.01, 1.0 - full) + self.queue if self.ready else None,
            tpot_p95=0.05 + 0.05 * full if self.ready else None,
        )

    def follow(self, desired: int, now: float) -> None:
        while desired > self.ready + len(self.pending):
            self.pending.append(now + self.start_seconds)
        while desired < self.ready + len(self.pending):
            if self.pending:
                self.pending.pop()
            else:
                self.ready -= 1


@pytest.mark.parametrize("policy", [p for p in PolicyKind if p is not PolicyKind.SCHEDULE])
@given(
    load=st.floats(0.05, 9.0),
    ready=st.integers(0, 12),
    start_seconds=st.floats(0.0, 120.0),
)
@settings(max_examples=25)
def test_constant_load_never_flaps(
    policy: PolicyKind, load: float, ready: int, start_seconds: float
) -> None:
    """After it has found its size, and the queue of the beginning is gone, nothing changes any more."""
    config = config_of(policy, down_delay=30.0, down_pause=5.0)
    bounds = Bounds("chat", 1, 40)
    pool, state, sizes = Pool(load, ready, start_seconds), ScalingState(), []
    for number in range(800):
        now = 1000.0 + 2.0 * number
        decision, state = decide(pool.look(now, 2.0), state, config, bounds, wall=now)
        pool.follow(decision.desired, now)
        sizes.append(decision.desired)
    changes = sum(a != b for a, b in pairwise(sizes[400:]))
    assert changes == 0, sizes[400:]
    if policy is not PolicyKind.UTILISATION:  # which may sit at a use that is always full
        assert sizes[-1] >= load * 0.9
