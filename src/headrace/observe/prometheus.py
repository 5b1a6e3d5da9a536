"""The text that Prometheus scrapes (exposition format 0.0.4), under our names and under vLLM's.

Written here rather than with a client library: the values are ours already, and this is a page.
"""

from collections.abc import Iterable, Iterator

from headrace.observe.catalogue import REQUESTS_FINISHED, catalogue
from headrace.observe.metric import Kind, Metric
from headrace.observe.metrics import Histogram, LabelValues, Metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: vLLM's words for why a request ended.
_VLLM_REASONS = {"cancelled": "abort", "timeout": "abort", "shutdown": "abort"}
Labels = tuple[tuple[str, str], ...]


def expose(metrics: Metrics, *, headrace: bool = True, vllm: bool = False) -> str:
    """The page. Families without a value are left out."""
    lines: list[str] = []
    for metric in catalogue():
        if metrics.is_empty(metric):
            continue
        if headrace:
            lines += _family(metric.name, metric, _named(metric), metrics)
        if vllm:
            for name in metric.vllm:
                lines += _family(name, metric, _named_for_vllm(metric), metrics)
    return "\n".join(lines) + "\n" if lines else ""


def _named(metric: Metric) -> tuple[str, ...]:
    return metric.labels if metric.server_wide else ("model", *metric.labels)


def _named_for_vllm(metric: Metric) -> tuple[str, ...]:
    labels = ("finished_reason",) if metric is REQUESTS_FINISHED else metric.labels
    return ("model_name", *labels)


def _family(
    name: str, metric: Metric, label_names: tuple[str, ...], metrics: Metrics
) -> Iterator[str]:
    yield f"# HELP {name} {_escape_help(metric.meaning)}"
    yield f"# TYPE {name} {metric.kind}"
    is_vllm = name.startswith("vllm:")
    if metric.kind is Kind.HISTOGRAM:
        for values, histogram in metrics.histograms(metric):
            labels = _pair(label_names, values, is_vllm)
            yield from histogram_lines(name, labels, histogram, metric.buckets)
        return
    for labels, value in _merged(label_names, metrics.values(metric), is_vllm):
        yield f"{name}{braces(labels)} {number(value)}"


def histogram_lines(
    name: str, labels: Labels, histogram: Histogram, buckets: tuple[float, ...]
) -> Iterator[str]:
    """One histogram's samples, with these buckets out of its own."""
    seen, shown = 0, set(buckets)
    for bound, count in zip(histogram.bounds, histogram.counts, strict=False):
        seen += count
        if bound in shown:
            yield f"{name}_bucket{braces((*labels, ('le', number(bound))))} {seen}"
    count = seen + histogram.counts[-1]
    yield f"{name}_bucket{braces((*labels, ('le', '+Inf')))} {count}"
    yield f"{name}_sum{braces(labels)} {number(histogram.total)}"
    yield f"{name}_count{braces(labels)} {count}"


def _merged(
    label_names: tuple[str, ...], values: Iterable[tuple[LabelValues, float]], is_vllm: bool
) -> Iterable[tuple[Labels, float]]:
    """Samples by label; those whose labels become equal in vLLM's words are added up."""
    merged: dict[Labels, float] = {}
    for label_values, value in values:
        labels = _pair(label_names, label_values, is_vllm)
        merged[labels] = merged.get(labels, 0.0) + value
    return merged.items()


def _pair(names: tuple[str, ...], values: LabelValues, is_vllm: bool) -> Labels:
    pairs = tuple(zip(names, values, strict=True))
    if not is_vllm:
        return pairs
    worded = tuple(
        (name, _VLLM_REASONS.get(value, value) if name == "finished_reason" else value)
        for name, value in pairs
    )
    return (*worded, ("engine", "0"))


def braces(labels: Labels) -> str:
    """Labels as they stand behind a name."""
    if not labels:
        return ""
    inside = ",".join(f'{name}="{_escape_value(value)}"' for name, value in labels)
    return "{" + inside + "}"


def number(value: float) -> str:
    """Whole numbers without a point."""
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)


def _escape_value(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
