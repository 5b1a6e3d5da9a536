"""Makes Signals of what is known of replicas, queue and traffic. Pure: a simulator drives it as the gateway does.

sums = Sums(now, window, prompt_weight)
on each request:      sums.traffic.arrived(now, prompt_tokens, bound)   ...   sums.traffic.ended(now, Ended(...))
before each decision: signals = gather(now, replicas, queue, sums, counts, slo)
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from headrace.config.fleet.scaling import Objectives
from headrace.core.stats import ReplicaRole
from headrace.fleet.autoscaler.capacity import Capacity
from headrace.fleet.autoscaler.traffic import Traffic, TrafficSummary
from headrace.fleet.autoscaler.values import Signals

N = TypeVar("N", int, float)


class ReplicaLook(NamedTuple):
    """One ready replica. None is "not told"."""

    num_running: int | None = None
    num_waiting: int | None = None
    slots: int | None = None
    kv_usage: float | None = None
    tokens_per_second: float | None = None
    """That it says it processes, weighted."""
    utilisation: float | None = None
    temperature: float | None = None
    is_throttled: bool | None = None
    is_fresh: bool = True
    """What it tells is of this moment, and it tells what it runs."""


class QueueLook(NamedTuple):
    """What waits in the gateway."""

    size: int = 0
    wait: float | None = None
    """Seconds that the longest has waited."""


class Counts(NamedTuple):
    """Replicas that are not ready."""

    num_pending: int = 0
    num_warm: int = 0


class Sums:
    """What is remembered of one group of pools between looks."""

    def __init__(
        self,
        now: float,
        window: float,
        prompt_weight: float,
        role: ReplicaRole = ReplicaRole.BOTH,
    ) -> None:
        """`prompt_weight` as in the configuration. To pools for prefill alone only prompts count, and their time to the
        first token; to those for decode alone only answers, and the time between tokens.
        """
        self.window = window
        self.prompt_weight = prompt_weight
        self.role = role
        self.traffic = Traffic(
            now,
            window,
            prompt_weight=0.0 if role is ReplicaRole.DECODE else prompt_weight,
            output_weight=0.0 if role is ReplicaRole.PREFILL else 1.0,
        )
        self.capacity = Capacity()


def gather(
    now: float,
    replicas: Sequence[ReplicaLook],
    queue: QueueLook,
    sums: Sums,
    counts: Counts,
    slo: Objectives,
) -> Signals:
    """One look at a group of pools. Sums count only where all ready replicas tell; means are over those that do."""
    running = _all(r.num_running for r in replicas)
    slots = _all(r.slots for r in replicas)
    inside = sum(r.num_waiting or 0 for r in replicas)
    waiting = queue.size + inside
    if waiting or running:
        sums.traffic.touch(now)
    seen = sums.traffic.summary(now, slo)
    processed = _processed(replicas, seen)
    sums.capacity.note(
        now,
        processed=processed,
        num_ready=len(replicas),
        use=running / slots if running is not None and slots else None,
        busy=_mean(r.utilisation for r in replicas),
        slowness=slo.slowness(ttft=seen.ttft_p95, tpot=seen.tpot_p95, itl=seen.itl_p95),
        is_queued=queue.size > 0,
        window=sums.window,
    )
    throttled = [r.is_throttled for r in replicas if r.is_throttled is not None]
    temperatures = [r.temperature for r in replicas if r.temperature is not None]
    return Signals(
        at=now,
        window=sums.window,
        num_ready=len(replicas),
        num_pending=counts.num_pending,
        num_warm=counts.num_warm,
        num_reporting=sum(r.is_fresh for r in replicas),
        queue_size=waiting,
        num_waiting=inside,
        queue_wait=queue.wait,
        num_running=running,
        slots=slots or None,
        kv_usage=_mean(r.kv_usage for r in replicas),
        incoming_tokens_per_second=seen.incoming_tokens_per_second,
        burst_tokens_per_second=seen.burst_tokens_per_second,
        burst_requests=seen.burst_requests,
        processed_tokens_per_second=processed,
        capacity_tokens_per_second=sums.capacity.tokens_per_second,
        arrivals_per_second=seen.arrivals_per_second,
        input_tokens=seen.input_tokens,
        output_tokens=seen.output_tokens,
        idle_seconds=seen.idle_seconds,
        ttft_p95=None if sums.role is ReplicaRole.DECODE else seen.ttft_p95,
        tpot_p95=None if sums.role is ReplicaRole.PREFILL else seen.tpot_p95,
        itl_p95=None if sums.role is ReplicaRole.PREFILL else seen.itl_p95,
        slo_attainment=seen.slo_attainment,
        utilisation=_mean(r.utilisation for r in replicas),
        temperature=max(temperatures, default=None),
        is_throttled=any(throttled) if throttled else None,
    )


def _processed(replicas: Sequence[ReplicaLook], seen: TrafficSummary) -> float | None:
    """Weighted tokens a second, as all replicas tell them, or as requests ended."""
    told = _all(r.tokens_per_second for r in replicas)
    return seen.processed_tokens_per_second if told is None else told


def _all(values: Iterable[N | None]) -> N | None:
    """The sum, if every one tells and there is any."""
    known = list(values)
    told = [value for value in known if value is not None]
    return sum(told) if told and len(told) == len(known) else None


def _mean(values: Iterable[float | None]) -> float | None:
    told = [value for value in values if value is not None]
    return sum(told) / len(told) if told else None
