"""Pools and decisions as the dashboard shows them."""

from headrace.config.fleet.scaling import DecisionLogConfig
from headrace.fleet.autoscaler.decision_log import DecisionLog
from headrace.fleet.autoscaler.shapes import InstanceStatus, PoolsStatus, PoolStatus
from headrace.fleet.autoscaler.values import Decision
from headrace.fleet.autoscaler.views import decision_views, pool_views


def decision(desired: int, at: float) -> Decision:
    return Decision(
        pool="chat", at=at, current=1, desired=desired, policy="queue",
        reason=f"9 wait, {desired} are wanted.", limited_by="step",
    )  # fmt: skip


def pool(phases: list[str], *, override: int | None, last: Decision | None) -> PoolStatus:
    instances = tuple(
        InstanceStatus(
            id=f"chat-{n}", phase=phase, seconds=1.0, version="", revision="r", url=None, num_requests=0, reason=""
        )
        for n, phase in enumerate(phases)
    )  # fmt: skip
    return PoolStatus(
        name="chat", model="m", driver="local", role="both", version="", revision="r", min_replicas=0,
        max_replicas=4, hourly_cost=0.5, override=override, decision=last, signals=None, cold_starts={},
        num_failures=0, is_crash_loop=False, rollout=None, instances=instances,
    )  # fmt: skip


def test_a_pool_is_counted_by_what_its_instances_do() -> None:
    phases = ["ready", "ready", "starting", "unready", "warm", "warming", "draining", "failed"]
    status = PoolsStatus(
        is_active=True,
        is_advisory=False,
        pools=(pool(phases, override=None, last=decision(3, 1.0)), pool([], override=2, last=decision(3, 1.0))),
    )  # fmt: skip
    busy, overridden = pool_views(status)
    assert (busy.ready, busy.pending, busy.warm, busy.desired) == (2, 2, 2, 3)
    assert (busy.min_replicas, busy.max_replicas, busy.hourly_cost) == (0, 4, 0.5)
    assert (overridden.ready, overridden.desired) == (0, 2)


def test_decisions_are_told_newest_first_with_what_was_done() -> None:
    log = DecisionLog(DecisionLogConfig())
    log.decided(decision(2, 1.0))
    log.acted(2.0, "chat", "chat-1", "Started chat-1.")
    log.failed(3.0, "chat", "It ended at once.")
    fault, action, first = decision_views(log.last(10))
    assert (fault.kind, action.kind, first.kind) == ("fault", "action", "decision")
    assert (action.reason, action.desired) == ("Started chat-1.", None)
    assert (first.current, first.desired, first.limited_by) == (1, 2, "step")
