"""Metrics of the autoscaler: a part of the catalogue, which shows them with all others."""

from headrace.observe.metric import Kind, Metric

#: Seconds of a start: from a parked replica to a model that is fetched first.
_STARTS = (
    0.05,
    0.1,
    0.2,
    0.35,
    0.5,
    0.75,
    1.0,
    1.5,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
)

POOL_REPLICAS = Metric(
    "headrace_autoscaler_replicas", Kind.GAUGE, "replicas",
    "Replicas of a pool by phase: starting, ready, unready, warming, warm, draining, stopping, failed.",
    ("pool", "phase"), server_wide=True,
)  # fmt: skip
POOL_DESIRED = Metric(
    "headrace_autoscaler_desired_replicas", Kind.GAUGE, "replicas",
    "Replicas that a pool should have, ready or pending.", ("pool",), server_wide=True,
)  # fmt: skip
POOL_CURRENT = Metric(
    "headrace_autoscaler_current_replicas", Kind.GAUGE, "replicas",
    "Replicas of a pool that are ready or pending.", ("pool",), server_wide=True,
)  # fmt: skip
POOL_PENDING = Metric(
    "headrace_autoscaler_pending_replicas", Kind.GAUGE, "replicas",
    "Replicas of a pool that were started and do not serve yet, or not any more.",
    ("pool",), server_wide=True,
)  # fmt: skip
POOL_COST = Metric(
    "headrace_autoscaler_hourly_cost", Kind.GAUGE, "money",
    "Money an hour for what a pool has now, warm replicas included.", ("pool",), server_wide=True,
)  # fmt: skip
POOL_OVERRIDE = Metric(
    "headrace_autoscaler_override", Kind.GAUGE, "boolean",
    "1 while an operator has set a pool's size.", ("pool",), server_wide=True,
)  # fmt: skip
POOL_CRASH_LOOP = Metric(
    "headrace_autoscaler_crash_loop", Kind.GAUGE, "boolean",
    "1 while a pool's replicas fail again and again.", ("pool",), server_wide=True,
)  # fmt: skip
POOL_FAILURES = Metric(
    "headrace_autoscaler_failures_total", Kind.COUNTER, "replicas",
    "Replicas that failed, or could not be started.", ("pool",), server_wide=True,
)  # fmt: skip
DECISIONS = Metric(
    "headrace_autoscaler_decisions_total", Kind.COUNTER, "decisions",
    "Decisions by policy, by direction (up, down, hold) and by what limited them (none, max_replicas, min_replicas, "
    "cooldown, delay, burst, step, budget, missing_data, override, role).",
    ("pool", "policy", "direction", "limited_by"), server_wide=True,
)  # fmt: skip
COLD_START = Metric(
    "headrace_autoscaler_cold_start_seconds", Kind.HISTOGRAM, "seconds",
    "From a start to the first good probe, by the way of starting: exec, prestarted, parked.",
    ("pool", "kind"), buckets=_STARTS, server_wide=True,
)  # fmt: skip
DRIVER_ERRORS = Metric(
    "headrace_autoscaler_driver_errors_total", Kind.COUNTER, "errors",
    "Times that a place for replicas could not be asked, or refused.", ("driver",), server_wide=True,
)  # fmt: skip
IS_LEADER = Metric(
    "headrace_autoscaler_active", Kind.GAUGE, "boolean",
    "1 if this gateway's autoscaler acts, 0 while another one of the fleet does.", (), server_wide=True,
)  # fmt: skip

#: Those whose first label is a pool.
BY_POOL = (
    POOL_REPLICAS, POOL_DESIRED, POOL_CURRENT, POOL_PENDING, POOL_COST, POOL_OVERRIDE,
    POOL_CRASH_LOOP, POOL_FAILURES, DECISIONS, COLD_START,
)  # fmt: skip
