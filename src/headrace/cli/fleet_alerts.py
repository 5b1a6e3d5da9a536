"""`headrace fleet alerts` and `headrace fleet slos`: what is at risk, and how objectives stand."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from headrace.cli.admin_client import add_gateway, admin_client
from headrace.cli.flags import Parser
from headrace.cli.tables import table

SLO_COLUMNS: Final = ("slo", "model", "target", "attainment", "recent", "budget_left", "severity")


def alerts_main(argv: Sequence[str]) -> int:
    """1 while a critical one fires, so that scripts can ask."""
    arguments = alerts_parser().parse(argv)
    found = admin_client(arguments).call("GET", "/alerts")
    if arguments.get("json"):
        _show_json(found)
    else:
        rows = [_alert(alert) for alert in found["firing"]]
        rows += [_alert(alert) for alert in found["past"]] if arguments.get("all") else []
        columns = ("state", "severity", "slo", "model", "since", "reason")
        print(table(rows, columns) if rows else "No alert fires.")
    return int(any(alert["severity"] == "critical" for alert in found["firing"]))


def slos_main(argv: Sequence[str]) -> int:
    """Every objective for every model."""
    arguments = slos_parser().parse(argv)
    found = admin_client(arguments).call("GET", "/slos")
    if arguments.get("json"):
        _show_json(found)
    else:
        rows = [_slo(report) for report in found["slos"]]
        print(table(rows, SLO_COLUMNS) if rows else "No objective has counted a request yet.")
    return 0


def alerts_parser() -> Parser:
    """The parser of `headrace fleet alerts`."""
    parser = Parser("headrace fleet alerts", "Show alerts; status 1 while a critical one fires.")
    add_gateway(parser)
    parser.add_argument("--all", action="store_true", help="those that are over, too")
    return parser


def slos_parser() -> Parser:
    """The parser of `headrace fleet slos`."""
    parser = Parser("headrace fleet slos", "Show objectives and what is left of their budgets.")
    add_gateway(parser)
    return parser


def _alert(alert: dict[str, Any]) -> dict[str, Any]:
    since = datetime.fromtimestamp(alert["began"], UTC).isoformat(timespec="seconds")
    return {**alert, "since": since}


def _slo(report: dict[str, Any]) -> dict[str, Any]:
    shares = {
        name: "-" if report[name] is None else f"{report[name]:.3%}"
        for name in ("target", "attainment", "recent", "budget_left")
    }
    return {**report, **shares, "severity": report["severity"] or "ok"}


def _show_json(found: Any) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")
