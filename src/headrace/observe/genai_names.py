"""The numbers for which OpenTelemetry's conventions for generative AI have names, as its Prometheus exporters write them.

Dots become underscores, and the unit stands at the end; attributes are labels. Buckets are those of the conventions.
https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/
"""

from collections.abc import Iterator

from headrace.observe.catalogue import catalogue
from headrace.observe.metric import Metric
from headrace.observe.metrics import Metrics
from headrace.observe.prometheus import Labels, histogram_lines

#: What every sample has. A histogram counts requests of all kinds, so the operation is the most general one.
_ATTRIBUTES: Labels = (
    ("gen_ai_operation_name", "generate_content"),
    ("gen_ai_provider_name", "headrace"),
)
_UNITS = {"seconds": "_seconds", "tokens": ""}


def expose_genai(metrics: Metrics) -> str:
    """The page; empty where nothing was counted yet."""
    lines: list[str] = []
    for name, family in _families(metrics):
        lines += [f"# HELP {name} {family[0].genai}", f"# TYPE {name} histogram"]
        for metric in family:
            for values, histogram in metrics.histograms(metric):
                labels = (*_ATTRIBUTES, *metric.genai_labels, *_named(metric, values))
                lines += histogram_lines(name, labels, histogram, metric.genai_buckets)
    return "\n".join(lines) + "\n" if lines else ""


def _families(metrics: Metrics) -> Iterator[tuple[str, list[Metric]]]:
    found: dict[str, list[Metric]] = {}
    for metric in catalogue():
        if metric.genai and not metrics.is_empty(metric):
            name = metric.genai.replace(".", "_") + _UNITS[metric.unit]
            found.setdefault(name, []).append(metric)
    yield from found.items()


def _named(metric: Metric, values: tuple[str, ...]) -> Labels:
    names = ("gen_ai_request_model", *(f"headrace_{label}" for label in metric.labels))
    return tuple(zip(names, values, strict=True))
