"""The production autoscaler over a simulated fleet: its sums, its signals, its decision."""

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from headrace.bench.simulate.options import ScaleOptions, SimulateOptions
from headrace.bench.simulate.tally import read_slo
from headrace.bench.simulate.virtual_time import START_WALL
from headrace.config.fleet.pools import PoolConfig
from headrace.config.fleet.root import FleetConfig
from headrace.config.fleet.scaling import AutoscalerConfig, ScalingConfig
from headrace.core.errors import ConfigError
from headrace.fleet.autoscaler.cold_starts import ColdStart, ColdStarts, StartKind
from headrace.fleet.autoscaler.gather import Counts, QueueLook, ReplicaLook, Sums, gather
from headrace.fleet.autoscaler.scale import Bounds, ScalingState, decide
from headrace.fleet.autoscaler.traffic import Ended
from headrace.fleet.autoscaler.values import Decision

POOL = "pool"
#: Decisions that changed something and are kept.
_KEPT = 10_000


class ScalePlan(NamedTuple):
    """What scales, and within which bounds."""

    config: AutoscalerConfig
    scaling: ScalingConfig
    bounds: Bounds
    hourly_cost: float | None = None
    """As the fleet's file says; None: there is none."""


def plan_of(options: SimulateOptions) -> ScalePlan | None:
    """As the flags and the fleet's file say; None: the fleet is fixed. Raises ConfigError."""
    wanted = options.scale
    if wanted.fleet is None and wanted.policy is None:
        return None
    fleet = FleetConfig()
    pool = PoolConfig(
        name=POOL, model="-", min_replicas=wanted.min_replicas or 0, max_replicas=10_000
    )
    cost = None
    if wanted.fleet is not None:
        fleet, pool = _of_file(wanted)
        cost = pool.hourly_cost
    scaling = fleet.autoscaler.of(pool.name)
    least = pool.min_replicas if wanted.min_replicas is None else wanted.min_replicas
    most = pool.max_replicas if wanted.max_replicas is None else wanted.max_replicas
    if wanted.fleet is None and wanted.min_replicas is None:
        least = 1
    if least > most:
        raise ConfigError(f"--min-replicas {least} is above --max-replicas {most}.")
    if wanted.policy is not None:
        scaling = _with_policy(scaling, options)
    return ScalePlan(fleet.autoscaler, scaling, Bounds(pool.name, least, most), cost)


def first_size(options: SimulateOptions, plan: ScalePlan | None) -> int:
    """Replicas at the start. Raises ConfigError for a fixed fleet of none."""
    wanted = options.scale.replicas
    if plan is None:
        if not wanted:
            raise ConfigError("A fixed fleet needs at least one replica.")
        return wanted
    return min(max(wanted, plan.bounds.least), plan.bounds.most)


def hourly_cost(options: SimulateOptions, plan: ScalePlan | None) -> float:
    """Of one replica."""
    if options.place.hourly_cost is not None:
        return options.place.hourly_cost
    told = None if plan is None else plan.hourly_cost
    return 1.0 if told is None else told


def _with_policy(scaling: ScalingConfig, options: SimulateOptions) -> ScalingConfig:
    """Another policy; latencies that it goes by are those of --slo where the file has none."""
    slo = scaling.slo
    if not slo.is_set:
        bounds = read_slo(options.slo)
        slo = replace(slo, ttft=bounds.get("ttft"), tpot=bounds.get("tpot"))
    return replace(scaling, policy=options.scale.policy, slo=slo)


def _of_file(wanted: ScaleOptions) -> tuple[FleetConfig, PoolConfig]:
    from headrace.config.fleet.read import read_fleet

    assert wanted.fleet is not None
    fleet = read_fleet(Path(wanted.fleet).expanduser())
    found = [p for p in fleet.pools if wanted.pool in (None, p.name)]
    if not found:
        missing = f"no pool '{wanted.pool}'" if wanted.pool else "no pools"
        raise ConfigError(f"{wanted.fleet} has {missing}.")
    return fleet, found[0]


class Autoscaler:
    """Watches one pool and says how large it should be."""

    def __init__(self, plan: ScalePlan) -> None:
        self._plan = plan
        self._state = ScalingState()
        self._cold_starts = ColdStarts()
        self._use: deque[tuple[float, float, float]] = deque()
        self.sums = Sums(0.0, plan.config.window, plan.scaling.tokens.prompt_weight)
        self.period = plan.config.period
        self.warmup = plan.config.warmup
        self.drain_timeout = plan.config.drain_timeout
        self.decisions: deque[Decision] = deque(maxlen=_KEPT)
        """Those that changed something."""

    @property
    def bounds(self) -> Bounds:
        """Of the pool."""
        return self._plan.bounds

    def booted(self, seconds: float) -> None:
        """A replica serves, so long after it was ordered."""
        self._cold_starts.note(ColdStart(pool=POOL, kind=StartKind.EXEC, seconds=seconds))

    def ended(self, now: float, request: Ended) -> None:
        """A request was answered."""
        self.sums.traffic.ended(now, request)

    def utilisation(self, now: float, busy_seconds: float, ready_seconds: float) -> float | None:
        """Share of the last window in which replicas computed; both are totals so far."""
        self._use.append((now, busy_seconds, ready_seconds))
        while len(self._use) > 2 and self._use[1][0] <= now - self._plan.config.window:
            self._use.popleft()
        _, busy, ready = self._use[0]
        if ready_seconds <= ready:
            return None
        return min(1.0, max(0.0, (busy_seconds - busy) / (ready_seconds - ready)))

    def look(
        self, now: float, replicas: Sequence[ReplicaLook], queue: QueueLook, num_pending: int
    ) -> int:
        """How many replicas there should be, ready or on their way."""
        signals = gather(
            now, replicas, queue, self.sums, Counts(num_pending), self._plan.scaling.slo
        )
        decision, self._state = decide(
            signals,
            self._state,
            self._plan.scaling,
            self._plan.bounds,
            wall=START_WALL + now,
            cold_start=self._cold_starts.expected(POOL),
        )
        if decision.desired != decision.current:
            self.decisions.append(decision)
        return decision.desired
