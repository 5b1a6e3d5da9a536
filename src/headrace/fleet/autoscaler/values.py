"""What policies see and say. None is "not told", never zero."""

from enum import StrEnum

from msgspec import Struct


class Signals(Struct, frozen=True, kw_only=True):
    """One pool, or several that serve one model together, over the last window: from the gateway's own counts and the
    replicas' reports.

    Samples of replicas that are still warming up are left out. Percentiles and rates are None where too little was seen.
    """

    at: float
    """`Clock.monotonic`."""
    window: float
    """Seconds that rates and percentiles cover."""
    num_ready: int
    """Replicas that serve."""
    num_pending: int
    """Started and not serving yet."""
    num_warm: int
    """Parked or pre-started ones."""
    num_reporting: int
    """Of the ready ones, those whose load is known and fresh."""
    queue_size: int = 0
    """Requests that wait: in the gateway for this pool, and in its replicas."""
    num_waiting: int = 0
    """Of those, the ones that wait inside replicas."""
    queue_wait: float | None = None
    """Seconds that the longest of them has waited."""
    num_running: int | None = None
    slots: int | None = None
    """Sequences that the ready replicas can run at once."""
    kv_usage: float | None = None
    """Mean share of KV blocks in use, 0..1."""
    incoming_tokens_per_second: float | None = None
    """Of prompts and expected answers, as requests arrive; those of prompts weighted as `tokens.prompt_weight` says, here
    and in the two rates below."""
    burst_tokens_per_second: float | None = None
    """That must be processed so that what came lately waits no longer than it may; None: no objective for the TTFT."""
    burst_requests: int | None = None
    """That came in the stretch which asks for so much."""
    processed_tokens_per_second: float | None = None
    capacity_tokens_per_second: float | None = None
    """What one replica has been seen to process when it was full; None: not seen yet."""
    arrivals_per_second: float | None = None
    input_tokens: float | None = None
    """Of a request's prompt, those that were not cached; the mean."""
    output_tokens: float | None = None
    """Of a request's answer, the mean."""
    idle_seconds: float | None = None
    """Since when no request has come, waited or run."""
    ttft_p95: float | None = None
    tpot_p95: float | None = None
    itl_p95: float | None = None
    """Over requests, of what 95 of 100 gaps between a request's own tokens did not exceed."""
    slo_attainment: float | None = None
    """Share of the window's requests within the objective, 0..1."""
    utilisation: float | None = None
    """Mean use of CPU or GPU, 0..1."""
    temperature: float | None = None
    """Hottest device, °C; for information."""
    is_throttled: bool | None = None
    """A device is slowed down by heat or power; for information."""


class Limit(StrEnum):
    """What keeps a decision from what its policy wants, or from less. docs/guides/autoscaling.md explains each."""

    MIN_REPLICAS = "min_replicas"
    MAX_REPLICAS = "max_replicas"
    DELAY = "delay"
    STEP = "step"
    COOLDOWN = "cooldown"
    BURST = "burst"
    MISSING_DATA = "missing_data"
    ROLE = "role"
    BUDGET = "budget"
    OVERRIDE = "override"


class Decision(Struct, frozen=True, kw_only=True):
    """What a pool should be, and why."""

    pool: str
    at: float
    """`Clock.wall`."""
    current: int
    """Replicas ready or pending when it was made."""
    desired: int
    policy: str
    """Which policy spoke."""
    reason: str
    """One sentence with the figures that led to it."""
    limited_by: str = ""
    """What kept it from more or fewer: min_replicas, max_replicas, delay, step, cooldown, burst, missing_data, role, budget
    or override; empty: nothing."""
    is_advisory: bool = False
    """Only logged, not done."""
