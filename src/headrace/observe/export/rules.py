"""Prometheus' rule files: burn rates of objectives as a gateway counts them, over all gateways; health; and sums of business.

https://prometheus.io/docs/prometheus/latest/configuration/recording_rules/
"""

from collections.abc import Iterator
from math import ceil
from typing import Any, Final

from headrace.config.fleet.root import FleetConfig
from headrace.config.fleet.slos import BurnRule, Objective, Severity
from headrace.config.units import format_duration
from headrace.observe import catalogue as names
from headrace.observe import gateway_metrics as gateway
from headrace.observe import system_metrics as system

#: Seconds of the shortest window: two scrapes at Prometheus' usual pace must fit.
_SHORTEST: Final = 60
_CRITICAL, _WARNING = str(Severity.CRITICAL), str(Severity.WARNING)

Rule = dict[str, Any]


def rule_groups(config: FleetConfig) -> dict[str, Any]:
    """The file as a tree: groups of objectives, where there are any, of health and of business."""
    groups = []
    if config.slos:
        rules = list(_error_ratios(config))
        for slo in config.slos:
            rules += _of_objective(slo, config.alerts.rules)
        groups.append({"name": "headrace-slos", "rules": rules})
    groups.append({"name": "headrace-health", "rules": list(_health())})
    groups.append({"name": "headrace-business", "rules": list(_business())})
    return {"groups": groups}


def _error_ratios(config: FleetConfig) -> Iterator[Rule]:
    """The share of bad ones over every window that some rule looks at, of all objectives at once."""
    windows = {
        _window(seconds)
        for slo in config.slos
        for rule in config.alerts.rules
        for seconds in (rule.long(slo.window), rule.short(slo.window))
    }
    name = gateway.SLO_EVENTS.name
    for seconds in sorted(windows):
        over = f"[{format_duration(seconds)}]"
        yield {
            "record": _record(seconds),
            "expr": (
                f'sum by (slo, model) (rate({name}{{result="bad"}}{over}))'
                f" / sum by (slo, model) (rate({name}{over}))"
            ),
        }


def _of_objective(slo: Objective, rules: tuple[BurnRule, ...]) -> Iterator[Rule]:
    wanted = f'{{slo="{slo.name}"}}'
    for severity in Severity:
        # One alert for all rules of a severity: two with the same labels would be one series twice.
        own = [rule for rule in rules if rule.severity is severity]
        if not own:
            continue
        yield {
            "alert": "HeadraceSloBurn",
            "expr": " or ".join(f"({_burning(slo, rule, wanted)})" for rule in own),
            "labels": {"severity": str(severity), "slo": slo.name},
            "annotations": {
                "summary": f"{slo.name}: the error budget of {{{{ $labels.model }}}} burns too fast",
                "description": (
                    f"{{{{ $value | humanizePercentage }}}} were bad lately; {slo.target:.6g} of them should be good over "
                    f"{format_duration(slo.window)} ({slo.measure})."
                ),
            },
        }


def _burning(slo: Objective, rule: BurnRule, wanted: str) -> str:
    long, short = _window(rule.long(slo.window)), _window(rule.short(slo.window))
    limit = f"{rule.limit(slo.target):.6g}"
    return f"{_record(long)}{wanted} > {limit} and {_record(short)}{wanted} > {limit}"


def _window(seconds: float) -> int:
    return max(_SHORTEST, ceil(seconds))


def _record(seconds: float) -> str:
    return f"headrace:slo_error_ratio:rate{format_duration(seconds)}"


def _health() -> Iterator[Rule]:
    http, standing = names.HTTP_REQUESTS.name, gateway.REPLICA_STANDING.name
    failed = f'sum by (instance) (rate({http}{{status=~"5.."}}[5m]))'
    yield _alert(
        "HeadraceAbsent", f"absent({names.BUILD.name})", _CRITICAL, "5m",
        "Nothing of headrace is scraped",
    )  # fmt: skip
    yield _alert(
        "HeadraceNoReplica", f'sum by (instance) ({standing}{{standing="ready"}}) == 0', _CRITICAL, "1m",
        "The gateway {{ $labels.instance }} has no ready replica",
    )  # fmt: skip
    yield _alert(
        "HeadraceReplicaEjected", f'max by (replica) ({standing}{{standing="ejected"}}) == 1', _WARNING, "5m",
        "The replica {{ $labels.replica }} fails requests and gets none",
    )  # fmt: skip
    yield _alert(
        "HeadraceNotReady", f"{names.READY.name} == 0", _WARNING, "10m",
        "The replica {{ $labels.instance }} is not ready",
    )  # fmt: skip
    yield _alert(
        "HeadraceEngineRestarts", f"increase({names.ENGINE_RESTARTS.name}[15m]) > 2", _CRITICAL, "0m",
        "The engine of {{ $labels.instance }} ends again and again",
    )  # fmt: skip
    yield _alert(
        "HeadraceIntegrity", f"increase({names.INTEGRITY_FAILURES.name}[1h]) > 0", _CRITICAL, "0m",
        "The KV ledger of {{ $labels.instance }} does not add up: report it",
    )  # fmt: skip
    yield _alert(
        "HeadraceErrors", f"{failed} / sum by (instance) (rate({http}[5m])) > 0.05", _CRITICAL, "5m",
        "More than 5 % of the answers of {{ $labels.instance }} are errors",
    )  # fmt: skip
    yield _alert(
        "HeadraceQueueOld", f"{names.QUEUE_OLDEST.name} > 30", _WARNING, "2m",
        "Requests wait for more than 30 s at {{ $labels.instance }}",
    )  # fmt: skip
    yield _alert(
        "HeadraceKvFull",
        f"{names.KV_USAGE.name} > 0.95 and rate({names.PREEMPTIONS.name}[5m]) > 0", _WARNING, "10m",
        "KV memory of {{ $labels.instance }} is full, and sequences are computed twice",
    )  # fmt: skip
    yield _alert(
        "HeadraceAlertsLost",
        f'increase({gateway.ALERT_MESSAGES.name}{{outcome="failed"}}[15m]) > 0', _WARNING, "0m",
        "Alerts of {{ $labels.instance }} do not reach their webhook",
    )  # fmt: skip
    yield _alert(
        "HeadraceGpuThrottled", f"{system.GPU_THROTTLED.name} == 1", _WARNING, "10m",
        "Heat or power slows down GPU {{ $labels.gpu }} of {{ $labels.instance }}",
    )  # fmt: skip


def _alert(name: str, expr: str, severity: str, wait: str, summary: str) -> Rule:
    return {
        "alert": name,
        "expr": expr,
        "for": wait,
        "labels": {"severity": severity},
        "annotations": {"summary": summary},
    }


def _business() -> Iterator[Rule]:
    tokens, cost = gateway.REQUEST_TOKENS.name, gateway.TENANT_COST.name
    yield {
        "record": "headrace:tokens:rate5m",
        "expr": f"sum by (model, kind) (rate({tokens}[5m]))",
    }
    yield {
        "record": "headrace:cost_per_1000_tokens:rate1h",
        "expr": f"1000 * sum by (model) (rate({cost}[1h])) / sum by (model) (rate({tokens}[1h]))",
    }
    yield {
        "record": "headrace:tenant_cost:increase1d",
        "expr": f"sum by (tenant) (increase({cost}[1d]))",
    }
    yield {
        "record": "headrace:cache_saved_cost:increase1d",
        "expr": f"sum by (model, cache) (increase({gateway.SAVED_COST.name}[1d]))",
    }
    for name, metric in (("ttft", gateway.REQUEST_TTFT), ("itl", gateway.REQUEST_ITL)):
        yield {
            "record": f"headrace:{name}:p95_5m",
            "expr": f"histogram_quantile(0.95, sum by (le, model) (rate({metric.name}_bucket[5m])))",
        }
