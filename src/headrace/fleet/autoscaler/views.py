"""The autoscaler as the dashboard shows it."""

from collections.abc import Iterable
from typing import Final

from headrace.fleet.autoscaler.decision_log import Entry
from headrace.fleet.autoscaler.shapes import PoolsStatus, PoolStatus
from headrace.fleet.dashboard.feeds import DecisionView, PoolView

_COMING: Final = frozenset({"starting", "unready"})
_WARM: Final = frozenset({"warming", "warm"})


def pool_views(status: PoolsStatus) -> list[PoolView]:
    """One for each pool."""
    return [_pool(pool) for pool in status.pools]


def decision_views(entries: Iterable[Entry]) -> list[DecisionView]:
    """`entries` are oldest first; what is shown is newest first."""
    views = [
        DecisionView(
            at=entry.at,
            pool=entry.pool,
            kind=str(entry.kind),
            reason=entry.text,
            current=entry.current,
            desired=entry.desired,
            policy=entry.policy,
            limited_by=entry.limited_by,
            is_advisory=entry.is_advisory,
        )
        for entry in entries
    ]
    return views[::-1]


def _pool(pool: PoolStatus) -> PoolView:
    phases = [instance.phase for instance in pool.instances]
    wanted = pool.override
    if wanted is None and pool.decision is not None:
        wanted = pool.decision.desired
    return PoolView(
        name=pool.name,
        model=pool.model,
        driver=pool.driver,
        min_replicas=pool.min_replicas,
        max_replicas=pool.max_replicas,
        ready=phases.count("ready"),
        pending=sum(phase in _COMING for phase in phases),
        warm=sum(phase in _WARM for phase in phases),
        desired=wanted,
        hourly_cost=pool.hourly_cost,
    )
