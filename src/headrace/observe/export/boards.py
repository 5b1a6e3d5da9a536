"""Grafana's boards: one for what matters, and one for each part of the catalogue with a panel for every metric."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from headrace.observe import (
    autoscaler_metrics,
    cache_metrics,
    catalogue,
    gateway_metrics,
    model_metrics,
    system_metrics,
)
from headrace.observe.metric import Kind, Metric

_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3
#: Grafana's words for our units; all others are plain numbers.
_UNITS: Final = {
    "seconds": "s", "bytes": "bytes", "ratio": "percentunit", "celsius": "celsius", "watts": "watt",
}  # fmt: skip
_QUANTILES: Final = (0.5, 0.95, 0.99)
Json = dict[str, Any]


class Board(NamedTuple):
    """One file."""

    name: str
    title: str
    metrics: tuple[Metric, ...]


def boards() -> tuple[Board, ...]:
    """All of them; every metric of the catalogue is on one beside the overview."""
    gateway, own = _metrics(vars(gateway_metrics)), _metrics(vars(catalogue))
    scaler = _metrics(vars(autoscaler_metrics))
    caches, system = _metrics(vars(cache_metrics)), _metrics(vars(system_metrics))
    of_gateway = tuple(m for m in own if m.name.startswith("headrace_gateway_"))
    objectives = tuple(m for m in gateway if m.name.startswith(("headrace_slo", "headrace_alert")))
    return (
        Board("headrace-overview", "headrace: overview", _OVERVIEW),
        Board("headrace-slos", "headrace: objectives and alerts", objectives),
        Board(
            "headrace-gateway", "headrace: gateway",
            (*(m for m in gateway if m not in objectives), *of_gateway, *caches),
        ),
        Board(
            "headrace-engine", "headrace: servers and engines",
            (*(m for m in own if m not in of_gateway), *_metrics(vars(model_metrics))),
        ),
        Board("headrace-autoscaler", "headrace: autoscaler", scaler),
        Board("headrace-system", "headrace: processes and devices", system),
    )  # fmt: skip


#: What to look at first.
_OVERVIEW: Final = (
    gateway_metrics.REQUESTS,
    gateway_metrics.REQUEST_TTFT,
    gateway_metrics.REQUEST_ITL,
    gateway_metrics.REQUEST_TIME,
    gateway_metrics.REQUEST_QUEUE_TIME,
    gateway_metrics.TOKEN_RATE,
    gateway_metrics.COST_PER_1000,
    gateway_metrics.TENANT_COST,
    gateway_metrics.SAVED_COST,
    gateway_metrics.SLO_BUDGET,
    gateway_metrics.ALERTS_FIRING,
    gateway_metrics.REPLICA_STANDING,
    catalogue.REQUESTS_RUNNING,
    catalogue.REQUESTS_WAITING,
    catalogue.KV_USAGE,
    catalogue.STEP_TIME,
    system_metrics.PROCESS_CPU,
    system_metrics.PROCESS_MEMORY,
)


def board_json(board: Board) -> Json:
    """As Grafana imports it."""
    return {
        "uid": board.name,
        "title": board.title,
        "tags": ["headrace"],
        "timezone": "browser",
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": [_panel(metric, at) for at, metric in enumerate(board.metrics)],
    }


def _metrics(table: dict[str, Any]) -> tuple[Metric, ...]:
    return tuple(v for v in table.values() if isinstance(v, Metric))


def _variables() -> Sequence[Json]:
    named = f"label_values({catalogue.HTTP_REQUESTS.name}, instance)"
    models = f"label_values({gateway_metrics.REQUESTS.name}, model)"
    return (
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
        _choice("instance", named),
        _choice("model", models),
    )


def _choice(name: str, query: str) -> Json:
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(metric: Metric, at: int) -> Json:
    unit = _UNITS.get(metric.unit, "short")
    if metric.kind is Kind.COUNTER:
        unit = "percentunit" if metric.unit == "seconds" else "short"
    row, column = divmod(at, _COLUMNS)
    title = metric.name.removeprefix("headrace_").removesuffix("_total").replace("_", " ")
    return {
        "id": at + 1,
        "type": "timeseries",
        "title": title,
        "description": metric.meaning,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": list(_targets(metric)),
    }


def _targets(metric: Metric) -> Iterable[Json]:
    labels = metric.labels if metric.server_wide else ("model", *metric.labels)
    chosen = ['instance=~"$instance"', *([] if metric.server_wide else ['model=~"$model|"'])]
    wanted = "{" + ",".join(chosen) + "}"
    by = f"sum by ({', '.join(labels)})" if labels else "sum"
    legend = " ".join(f"{{{{{label}}}}}" for label in labels) or "all"
    if metric.kind is Kind.HISTOGRAM:
        rate = f"sum by (le) (rate({metric.name}_bucket{wanted}[$__rate_interval]))"
        for number, quantile in enumerate(_QUANTILES):
            expr = f"histogram_quantile({quantile}, {rate})"
            yield {"refId": "ABC"[number], "expr": expr, "legendFormat": f"p{quantile * 100:g}"}
        return
    if metric.kind is Kind.COUNTER:
        expr = f"{by} (rate({metric.name}{wanted}[$__rate_interval]))"
    else:
        by = by.replace("sum", "avg" if metric.unit in ("ratio", "celsius") else "sum", 1)
        expr = f"{by} ({metric.name}{wanted})"
    yield {"refId": "A", "expr": expr, "legendFormat": legend}
