"""The numbers that llama.cpp's dashboards read, under its names: over all models, and without labels."""

from collections.abc import Iterator

from headrace.core.stats import LoadReport
from headrace.observe import catalogue as names
from headrace.observe.metric import Kind, Metric
from headrace.observe.metrics import Metrics
from headrace.observe.prometheus import number


def expose_llama(metrics: Metrics, load: LoadReport) -> str:
    """The page. Speculation has its counters, which stay at 0 as long as nothing is drafted."""
    lines = [
        line
        for name, kind, value, meaning in _families(metrics, load)
        for line in (
            f"# HELP llamacpp:{name} {meaning}",
            f"# TYPE llamacpp:{name} {kind}",
            f"llamacpp:{name} {number(value)}",
        )
    ]
    return "\n".join(lines) + "\n"


def _families(metrics: Metrics, load: LoadReport) -> Iterator[tuple[str, Kind, float, str]]:
    count, gauge, total = Kind.COUNTER, Kind.GAUGE, metrics.total
    cached, steps = total(names.CACHED_TOKENS), total(names.STEPS)
    longest = max((value for _, value in metrics.values(names.LONGEST_SEQUENCE)), default=0.0)
    computed = total(names.PROMPT_TOKENS) - cached
    yield "prompt_tokens_total", count, computed, "Prompt tokens computed."
    yield "prompt_tokens_cached_total", count, cached, "Prompt tokens that came from the cache."
    yield (
        "prompt_seconds_total",
        count,
        _seconds(metrics, names.PREFILL_TIME),
        "Time to first tokens.",
    )
    yield "tokens_predicted_total", count, total(names.GENERATION_TOKENS), "Output tokens made."
    decode = _seconds(metrics, names.DECODE_TIME)
    yield "tokens_predicted_seconds_total", count, decode, "Time behind first tokens."
    yield "n_decode_total", count, steps, "Steps of the engine."
    yield "n_tokens_max", count, longest, "Tokens of the longest finished sequence."
    for name in ("drafts", "draft_tokens", "accepted_tokens"):
        yield f"spec_decode_num_{name}_total", count, 0.0, "Speculation; there is none."
    yield "prompt_tokens_seconds", gauge, load.prefill_tokens_per_second, "Prompt tokens a second."
    yield (
        "predicted_tokens_seconds",
        gauge,
        load.decode_tokens_per_second,
        "Output tokens a second.",
    )
    yield "requests_processing", gauge, total(names.REQUESTS_RUNNING), "Sequences that run."
    yield "requests_deferred", gauge, total(names.REQUESTS_WAITING), "Sequences that wait."
    busy = total(names.STEP_SEQUENCES) / steps if steps else 0.0
    yield "n_busy_slots_per_decode", gauge, busy, "Sequences in a step, on average."


def _seconds(metrics: Metrics, metric: Metric) -> float:
    return sum(histogram.total for _, histogram in metrics.histograms(metric))
