"""One look at the whole fleet: what each pool should be. Pure.

    state = FleetState()
    every few seconds:
        plan, state = plan_fleet(views, state, config, wall=clock.wall())

Groups decide by their signals (`scale.py`); pools of a group share it (`groups.py`); prefill and decode replicas of one
model sleep and wake together; what the budget does not allow is not started.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from headrace.config.fleet.scaling import AutoscalerConfig
from headrace.core.stats import ReplicaRole
from headrace.fleet.autoscaler.groups import GroupKey, Holding, key_of, shared_out
from headrace.fleet.autoscaler.scale import Bounds, ScalingState, decide
from headrace.fleet.autoscaler.values import Decision, Limit, Signals

OVERRIDE = "override"


class GroupView(Struct, frozen=True, kw_only=True):
    """What is seen of one group."""

    holdings: tuple[Holding, ...]
    """At least one; the cheapest first, as `groups.grouped` has them."""
    signals: Signals
    """Of all of them together."""
    cold_start: float = 0.0
    """Seconds from a start to readiness, as measured."""

    @property
    def key(self) -> GroupKey:
        """Of its pools."""
        return key_of(self.holdings[0].pool)


class FleetState(Struct, frozen=True, kw_only=True):
    """What looks remember, by group."""

    groups: Mapping[GroupKey, ScalingState] = {}


class Plan(NamedTuple):
    """What should be."""

    decisions: tuple[Decision, ...]
    """One for each pool."""
    warm: Mapping[str, int]
    """Warm replicas by pool."""


def plan_fleet(
    views: Sequence[GroupView], state: FleetState, config: AutoscalerConfig, *, wall: float
) -> tuple[Plan, FleetState]:
    """One look. A group that is not in `views` this time keeps what it remembers."""
    decisions: dict[str, Decision] = {}
    states = dict(state.groups)
    for view in views:
        before = states.get(view.key, ScalingState())
        found, states[view.key] = _group(view, before, config, wall)
        decisions.update(found)
    _wake_together(views, decisions)
    warm = {h.pool.name: h.pool.warm_replicas for view in views for h in view.holdings}
    if config.budget is not None:
        _keep_budget(views, decisions, warm, config.budget)
    if config.advisory:
        decisions = {name: replace(d, is_advisory=True) for name, d in decisions.items()}
    return Plan(tuple(decisions.values()), warm), FleetState(groups=states)


def _group(
    view: GroupView, state: ScalingState, config: AutoscalerConfig, wall: float
) -> tuple[dict[str, Decision], ScalingState]:
    holdings = view.holdings
    bounds = Bounds(
        holdings[0].pool.name,
        sum(h.least for h in holdings),
        sum(h.most for h in holdings),
        sum(h.surplus for h in holdings),
    )
    settings = config.of(holdings[0].pool.name)
    whole, state = decide(
        view.signals, state, settings, bounds, wall=wall, cold_start=view.cold_start
    )
    counts = shared_out(whole.desired, holdings)
    found = {}
    for holding in holdings:
        name = holding.pool.name
        decision = replace(whole, pool=name, current=holding.current, desired=counts[name])
        if holding.override is not None:
            decision = replace(
                decision,
                policy=OVERRIDE,
                reason=f"set to {holding.override} by an operator",
                limited_by=str(Limit.OVERRIDE),
            )
        found[name] = decision
    return found, state


def _wake_together(views: Sequence[GroupView], decisions: dict[str, Decision]) -> None:
    """Neither half of a model can answer alone: both sleep, or both have one."""
    halves: dict[tuple[str, str], list[GroupView]] = {}
    for view in views:
        if view.key.role is not ReplicaRole.BOTH:
            halves.setdefault((view.key.model, view.key.version), []).append(view)
    for parts in halves.values():
        sizes = [sum(decisions[h.pool.name].desired for h in view.holdings) for view in parts]
        if not any(sizes):
            continue
        for view, size in zip(parts, sizes, strict=True):
            free = next((h for h in view.holdings if h.most > 0), None)
            if not size and free is not None:
                other = "decode" if view.key.role is ReplicaRole.PREFILL else "prefill"
                decisions[free.pool.name] = replace(
                    decisions[free.pool.name],
                    desired=1,
                    reason=f"its {other} replicas are awake",
                    limited_by=str(Limit.ROLE),
                )


def _keep_budget(
    views: Sequence[GroupView],
    decisions: dict[str, Decision],
    warm: dict[str, int],
    budget: float,
) -> None:
    """First no more warm ones, then no more of the dearest. What runs is not taken away for money."""
    holdings = [holding for view in views for holding in view.holdings]
    costs = {holding.pool.name: holding.pool.hourly_cost for holding in holdings}
    over = sum(costs[name] * (decisions[name].desired + warm[name]) for name in costs) - budget
    dearest_first = sorted(holdings, key=lambda h: (-h.pool.hourly_cost, h.pool.name))
    for holding in dearest_first:
        name = holding.pool.name
        spare = _too_many(over, costs[name], warm[name] - min(warm[name], holding.num_warm))
        warm[name] -= spare
        over -= spare * costs[name]
    for holding in dearest_first:
        name, decision = holding.pool.name, decisions[holding.pool.name]
        if holding.override is not None:
            continue
        spare = _too_many(over, costs[name], decision.desired - holding.current)
        if spare:
            over -= spare * costs[name]
            desired = decision.desired - spare
            decisions[name] = replace(decision, desired=desired, limited_by=str(Limit.BUDGET))


def _too_many(over: float, cost: float, added: int) -> int:
    """How many of `added` replicas have to go."""
    if over <= 1e-9 or cost <= 0 or added <= 0:
        return 0
    return min(added, int(over / cost) + (over % cost > 1e-9))
