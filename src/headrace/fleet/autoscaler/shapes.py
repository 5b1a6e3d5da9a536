"""Shapes of the autoscaler's part of the admin API."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from headrace.fleet.autoscaler.decision_log import Entry
from headrace.fleet.autoscaler.members import Facts, Member, seen_now
from headrace.fleet.autoscaler.planner import Planner
from headrace.fleet.autoscaler.values import Decision, Signals


class InstanceStatus(Struct, frozen=True, kw_only=True):
    """One instance."""

    id: str
    phase: str
    """starting, ready, unready, warming, warm, draining, stopping or failed."""
    seconds: float
    """In this phase, as far as this controller knows."""
    version: str
    revision: str
    url: str | None
    num_requests: int
    reason: str
    """Why it failed, or what it waits for."""


class RolloutStatus(Struct, frozen=True, kw_only=True):
    """An update that is going on, or was given up."""

    old: str
    new: str
    is_back: bool
    reason: str
    num_failed: int


class PoolStatus(Struct, frozen=True, kw_only=True):
    """One pool."""

    name: str
    model: str
    driver: str
    role: str
    version: str
    revision: str
    """That new replicas have."""
    min_replicas: int
    max_replicas: int
    hourly_cost: float
    override: int | None
    """What an operator has set."""
    decision: Decision | None
    """The last one."""
    signals: Signals | None
    """Of its group, that the last decision was made of."""
    cold_starts: Mapping[str, float]
    """Seconds from a start to readiness, a moving average, by the way of starting."""
    num_failures: int
    """In a row."""
    is_crash_loop: bool
    rollout: RolloutStatus | None
    instances: tuple[InstanceStatus, ...]


class PoolsStatus(Struct, frozen=True, kw_only=True):
    """All pools."""

    is_active: bool
    """This gateway's autoscaler acts; otherwise another one's does, and decisions are its."""
    is_advisory: bool
    pools: tuple[PoolStatus, ...]


class DecisionList(Struct, frozen=True, kw_only=True):
    """Entries of the decision log, oldest first."""

    decisions: tuple[Entry, ...]


class ScaleRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An operator's word."""

    replicas: Annotated[int, Meta(ge=0)] | None
    """So many, whatever the policy says; null: by policy again."""


class InstanceFacts(Struct, frozen=True, kw_only=True):
    """What a driver tells of an instance."""

    facts: Mapping[str, str]


def pool_status(
    planner: Planner,
    name: str,
    decision: Decision | None,
    signals: Signals | None,
    facts: Mapping[str, Facts],
    now: float,
) -> PoolStatus:
    """`facts` are the gateway's by now: it may know more than at the last look. `now` is `Clock.monotonic`."""
    pool, backoff = planner.pools[name], planner.backoff(name)
    rollout = planner.revisions.rollouts.get(name)
    members = [m for m in planner.members.values() if m.instance.pool == name]
    return PoolStatus(
        name=name,
        model=pool.model,
        driver=str(pool.driver),
        role=str(pool.role),
        version=pool.version,
        revision=planner.revisions.current(name),
        min_replicas=pool.min_replicas,
        max_replicas=pool.max_replicas,
        hourly_cost=pool.hourly_cost,
        override=planner.overrides.get(name),
        decision=decision,
        signals=signals,
        cold_starts={
            str(kind): seconds
            for kind, seconds in planner.cold_starts.means().get(name, {}).items()
        },
        num_failures=backoff.num_failures,
        is_crash_loop=backoff.is_crash_loop,
        rollout=None
        if rollout is None
        else RolloutStatus(
            old=rollout.old,
            new=rollout.new,
            is_back=rollout.is_back,
            reason=rollout.reason,
            num_failed=rollout.num_failed,
        ),
        instances=tuple(_instance(seen_now(m, facts.get(m.id), now), now) for m in members),
    )


def _instance(member: Member, now: float) -> InstanceStatus:
    instance = member.instance
    return InstanceStatus(
        id=instance.id,
        phase=str(member.phase),
        seconds=max(0.0, now - member.since),
        version=instance.version,
        revision=instance.revision,
        url=None if instance.spec is None else instance.spec.url,
        num_requests=member.facts.num_requests,
        reason=instance.reason,
    )
