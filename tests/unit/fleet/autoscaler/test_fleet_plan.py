"""Pools together: who grows and shrinks first, what money allows, halves of a model, operators' words."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.pool_signals import idle, signals

from headrace.config.fleet.pools import PoolConfig
from headrace.config.fleet.scaling import AutoscalerConfig, ScalingConfig, TokenTargets
from headrace.core.stats import ReplicaRole
from headrace.fleet.autoscaler.groups import Holding, grouped, shared_out
from headrace.fleet.autoscaler.plan import FleetState, GroupView, plan_fleet
from headrace.fleet.autoscaler.scale import ScalingState
from headrace.fleet.autoscaler.values import Decision

SCALING = ScalingConfig(
    tokens=TokenTargets(replica_tokens_per_second=100.0, load=1.0),
    max_step_up=10, max_step_down=10, down_delay=0.0, down_pause=0.0,
)  # fmt: skip


def pool(name: str, cost: float = 1.0, **more: Any) -> PoolConfig:
    usual: dict[str, Any] = {"model": "m", "min_replicas": 0, "max_replicas": 5}
    return PoolConfig(name=name, hourly_cost=cost, **{**usual, **more})


def holding(name: str, ready: int = 0, cost: float = 1.0, **more: Any) -> Holding:
    own = {k: more.pop(k) for k in ("override", "num_pending", "num_warm") if k in more}
    return Holding(pool=pool(name, cost, **more), num_ready=ready, **own)


def view(*holdings: Holding, tokens: float = 0.0, **more: Any) -> GroupView:
    ready = sum(h.num_ready for h in holdings)
    seen = signals(
        num_ready=ready, num_pending=sum(h.num_pending for h in holdings), num_running=0,
        incoming_tokens_per_second=tokens, **more,
    )  # fmt: skip
    return GroupView(holdings=holdings, signals=seen)


def planned(*views: GroupView, **config: Any) -> dict[str, Decision]:
    past = FleetState(groups={v.key: ScalingState(since=-9999.0) for v in views})
    plan, _ = plan_fleet(views, past, AutoscalerConfig(scaling=SCALING, **config), wall=5.0)
    return {decision.pool: decision for decision in plan.decisions}


def sizes(found: dict[str, Decision]) -> dict[str, int]:
    return {name: decision.desired for name, decision in found.items()}


def test_pools_of_one_model_role_and_version_are_a_group() -> None:
    dear, cheap = pool("dear", 3.0), pool("cheap", 1.0)
    others = (
        pool("other", model="n"), pool("v2", version="2"), pool("decode", role=ReplicaRole.DECODE),
    )  # fmt: skip
    groups = grouped((dear, cheap, *others))
    assert [len(members) for members in groups.values()] == [2, 1, 1, 1]
    assert next(iter(groups.values())) == (cheap, dear)


def test_cheapest_up_first_dearest_down_first() -> None:
    cheap, dear = holding("cheap", 2, 1.0, max_replicas=3), holding("dear", 2, 4.0)
    assert sizes(planned(view(cheap, dear, tokens=600.0))) == {"cheap": 3, "dear": 3}
    assert sizes(planned(view(cheap, dear, tokens=240.0))) == {"cheap": 2, "dear": 1}


@given(
    total=st.integers(0, 40),
    rows=st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 4), st.integers(1, 6), st.floats(0, 9)),
        min_size=1, max_size=5,
    ),
)  # fmt: skip
def test_shares_add_up_within_bounds(total: int, rows: list[tuple[int, int, int, float]]) -> None:
    holdings = [
        holding(f"p{n}", ready, cost, min_replicas=least, max_replicas=least + extra)
        for n, (ready, least, extra, cost) in enumerate(rows)
    ]
    counts = shared_out(total, holdings)
    least, most = sum(h.least for h in holdings), sum(h.most for h in holdings)
    assert sum(counts.values()) == min(max(total, least), most)
    assert all(h.least <= counts[h.pool.name] <= h.most for h in holdings)


def test_an_operator_s_word_counts_and_others_make_up_for_it() -> None:
    fixed, free = holding("fixed", 1, 1.0, override=4), holding("free", 3, 2.0)
    found = planned(view(fixed, free, tokens=500.0))
    assert sizes(found) == {"fixed": 4, "free": 1}
    assert found["fixed"].policy == "override"
    assert "operator" in found["fixed"].reason


def test_what_the_budget_does_not_allow_is_not_started() -> None:
    small = view(holding("small", 2, 1.0), tokens=400.0)
    large = view(holding("large", 1, 3.0, model="n"), tokens=300.0)
    assert sizes(planned(small, large)) == {"small": 4, "large": 3}
    held = planned(small, large, budget=8.0)
    assert sizes(held) == {"small": 4, "large": 1}
    assert held["large"].limited_by == "budget"
    # What runs is not taken away for money.
    assert sizes(planned(small, large, budget=0.5)) == {"small": 2, "large": 1}


def test_warm_ones_cost_money_too_and_give_way_first() -> None:
    both = view(holding("small", 1, 1.0, warm_replicas=2, num_warm=1), tokens=200.0)
    past = FleetState(groups={both.key: ScalingState(since=-9999.0)})
    for budget, warm, desired in ((4.0, 2, 2), (3.0, 1, 2), (2.0, 1, 1)):
        config = AutoscalerConfig(scaling=SCALING, budget=budget)
        plan, _ = plan_fleet([both], past, config, wall=5.0)
        assert (plan.warm["small"], plan.decisions[0].desired) == (warm, desired), budget


PREFILL, DECODE = ReplicaRole.PREFILL, ReplicaRole.DECODE


@pytest.mark.parametrize("awake", [PREFILL, DECODE])
def test_halves_of_a_model_sleep_and_wake_together(awake: ReplicaRole) -> None:
    other = DECODE if awake is PREFILL else PREFILL
    busy = view(holding("busy", 1, role=awake), tokens=100.0)
    quiet = GroupView(
        holdings=(holding("quiet", 1, role=other),), signals=idle(9999.0, num_ready=1)
    )
    together = planned(busy, quiet)
    assert sizes(together) == {"busy": 1, "quiet": 1}
    assert together["quiet"].limited_by == "role"
    asleep = GroupView(
        holdings=(holding("busy", 1, role=awake),), signals=idle(9999.0, num_ready=1)
    )
    assert sizes(planned(asleep, quiet)) == {"busy": 0, "quiet": 0}


def test_halves_grow_apart() -> None:
    prefill = view(holding("prefill", 1, role=PREFILL), tokens=400.0)
    decode = view(holding("decode", 1, role=DECODE), tokens=100.0)
    assert sizes(planned(prefill, decode)) == {"prefill": 4, "decode": 1}


def test_advice_is_marked() -> None:
    found = planned(view(holding("p", 1), tokens=300.0), advisory=True)
    assert found["p"].is_advisory
    assert found["p"].desired == 3


def test_a_group_that_is_not_seen_for_once_keeps_what_it_remembers() -> None:
    views = [view(holding("a", 1), tokens=100.0), view(holding("b", 1, model="n"), tokens=100.0)]
    config = AutoscalerConfig(scaling=SCALING)
    _, state = plan_fleet(views, FleetState(), config, wall=5.0)
    _, later = plan_fleet(views[:1], state, config, wall=6.0)
    assert later.groups[views[1].key] == state.groups[views[1].key]
