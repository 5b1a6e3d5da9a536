"""The autoscaler's numbers for the metrics page."""

from collections.abc import Sequence

from headrace.fleet.autoscaler.cold_starts import ColdStart
from headrace.fleet.autoscaler.members import Phase
from headrace.fleet.autoscaler.planner import Planner
from headrace.fleet.autoscaler.values import Decision
from headrace.observe import autoscaler_metrics as table
from headrace.observe.metrics import Metrics

_COSTING = (Phase.STARTING, Phase.READY, Phase.UNREADY, Phase.DRAINING, Phase.WARM, Phase.WARMING)


class Meter:
    """Writes what a step was to the metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._failures: dict[str, int] = {}

    def decided(self, decisions: Sequence[Decision]) -> None:
        """One step's."""
        for decision in decisions:
            direction = (decision.desired > decision.current) - (
                decision.desired < decision.current
            )
            name = ("hold", "up", "down")[direction]
            labels = (decision.pool, decision.policy, name, decision.limited_by or "none")
            self._metrics.add(table.DECISIONS, labels)
            self._metrics.set(table.POOL_DESIRED, (decision.pool,), decision.desired)
            self._metrics.set(table.POOL_CURRENT, (decision.pool,), decision.current)

    def started(self, starts: Sequence[ColdStart]) -> None:
        """Replicas that serve now."""
        for start in starts:
            labels = (start.pool, str(start.kind))
            self._metrics.histogram(table.COLD_START, labels).observe(start.seconds)

    def write(self, planner: Planner, *, is_leader: bool) -> None:
        """Gauges, as of the last look."""
        metrics = self._metrics
        metrics.set(table.IS_LEADER, (), float(is_leader))
        for metric in table.BY_POOL:
            metrics.keep(metric, planner.pools.keys())
        for name, pool in planner.pools.items():
            members = [m for m in planner.members.values() if m.instance.pool == name]
            for phase in Phase:
                count = sum(member.phase is phase for member in members)
                metrics.set(table.POOL_REPLICAS, (name, str(phase)), count)
            pending = sum(m.phase in (Phase.STARTING, Phase.UNREADY) for m in members)
            metrics.set(table.POOL_PENDING, (name,), pending)
            cost = pool.hourly_cost * sum(m.phase in _COSTING for m in members)
            metrics.set(table.POOL_COST, (name,), cost)
            metrics.set(table.POOL_OVERRIDE, (name,), float(name in planner.overrides))
            backoff = planner.backoff(name)
            metrics.set(table.POOL_CRASH_LOOP, (name,), float(backoff.is_crash_loop))
            self._count_failures(name, planner.num_failures.get(name, 0))

    def _count_failures(self, pool: str, total: int) -> None:
        new = total - self._failures.get(pool, 0)
        if new > 0:
            self._metrics.add(table.POOL_FAILURES, (pool,), new)
        self._failures[pool] = total
