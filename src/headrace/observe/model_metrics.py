"""Metrics of models that come and go: rows of the catalogue."""

from headrace.observe.metric import LATENCY, Kind, Metric

MODEL_STATE = Metric(
    "headrace_model_state", Kind.GAUGE, "boolean",
    "1 for the state that the model is in: empty (not loaded), loading, ready, draining, parked.",
    ("state",),
)  # fmt: skip
MODEL_MEMORY = Metric(
    "headrace_model_memory_bytes", Kind.GAUGE, "bytes",
    "Weights, keys and values of the model; 0 while it is not loaded.",
)  # fmt: skip
MODEL_LOADS = Metric(
    "headrace_model_loads_total", Kind.COUNTER, "loads",
    "Loads by request or by control, by outcome: loaded, failed.", ("outcome",),
)  # fmt: skip
MODEL_EVICTIONS = Metric(
    "headrace_model_evictions_total", Kind.COUNTER, "evictions",
    "Times that the model was unloaded to make room for others, or by control.",
)  # fmt: skip
COLD_START = Metric(
    "headrace_cold_start_seconds", Kind.HISTOGRAM, "seconds",
    "What requests waited until their model was loaded or woken.", buckets=LATENCY,
)  # fmt: skip
