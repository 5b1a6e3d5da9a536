"""`headrace fleet keys` and `headrace fleet usage`: who may call a gateway, and what was used."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from headrace.cli.admin_client import AdminClient, add_gateway, admin_client
from headrace.cli.flags import Parser
from headrace.cli.tables import table
from headrace.config.units import parse_duration
from headrace.core.errors import ConfigError

KEY_ACTIONS = ("list", "create", "revoke")
_KEY_COLUMNS = ("name", "tenant", "priority", "models", "state")
_SUMS = (
    "requests", "errors", "prompt_tokens", "cached_tokens", "output_tokens", "cost", "mean_ttft",
    "mean_latency",
)  # fmt: skip
_LIMITS = {
    "requests_per_minute": "requests a minute",
    "tokens_per_minute": "tokens a minute",
    "concurrency": "requests at once",
}
_BUDGETS = ("day", "month", "total")


def keys_main(argv: Sequence[str]) -> int:
    """List, create or revoke API keys."""
    parser = Parser("headrace fleet keys", "API keys of a gateway.", "[ACTION [NAME]]")
    parser.add_argument(
        "action", metavar="ACTION", nargs="?", default="list", choices=KEY_ACTIONS,
        help="list (default), create or revoke",
    )  # fmt: skip
    parser.add_argument("name", metavar="NAME", nargs="?", help="the key's name")
    parser.add_argument("--tenant", metavar="NAME", help="create: whose key it is")
    parser.add_argument("--priority", metavar="CLASS", help="create: class of its requests")
    parser.add_argument(
        "--models", metavar="NAME", nargs="+", help="create: models that it may use, * for any text"
    )
    parser.add_argument(
        "--expires-in", metavar="TIME", help="create: good for so long, such as 720h"
    )
    for limit, text in _LIMITS.items():
        parser.add_argument(
            f"--{limit.replace('_', '-')}",
            dest=limit,
            type=int,
            metavar="N",
            help=f"create: {text}",
        )
    for period in _BUDGETS:
        parser.add_argument(
            f"--budget-{period}", dest=f"budget_{period}", type=float, metavar="MONEY",
            help=f"create: money, {'in total' if period == 'total' else f'a {period}'}",
        )  # fmt: skip
    add_gateway(parser)
    arguments = parser.parse(argv)
    action, name = arguments["action"], arguments.get("name")
    if (name is None) != (action == "list"):
        raise ConfigError(f"`headrace fleet keys {action}` takes {'no' if name else 'a'} name.")
    return _keys(admin_client(arguments), action, name, arguments)


def usage_main(argv: Sequence[str]) -> int:
    """Sum up the ledger, or export its rows."""
    parser = Parser("headrace fleet usage", "What was used at a gateway, from its ledger.")
    parser.add_argument(
        "--by", default="tenant,model", help="key, tenant, model, replica, day, status (commas)"
    )
    for field, text in (
        ("since", "from this date on, such as 2026-11-01"),
        ("until", "before this date"),
        ("key", "of this key"),
        ("tenant", "of this tenant"),
        ("model", "of this model"),
    ):
        parser.add_argument(f"--{field}", help=text)
    parser.add_argument(
        "--export",
        metavar="FORMAT",
        choices=("jsonl", "csv"),
        help="write the rows instead: jsonl or csv",
    )
    add_gateway(parser)
    arguments = parser.parse(argv)
    fields = ("since", "until", "key", "tenant", "model")
    query = {name: arguments[name] for name in fields if name in arguments}
    client = admin_client(arguments)
    if "export" in arguments:
        path = f"/usage/rows?{urlencode({**query, 'format': arguments['export']})}"
        for piece in client.pieces(path):
            sys.stdout.buffer.write(piece)
        sys.stdout.flush()
        return 0
    found = client.call("GET", f"/usage?{urlencode({**query, 'by': arguments['by']})}")
    _show(arguments, found, [{**each["group"], **each} for each in found["usage"]], _columns(found))
    return 0


def _keys(client: AdminClient, action: str, name: str | None, arguments: Mapping[str, Any]) -> int:
    if action == "list":
        found = client.call("GET", "/keys")
        _show(arguments, found, [_key_row(key) for key in found["keys"]], _KEY_COLUMNS)
        return 0
    assert name is not None
    if action == "revoke":
        client.call("DELETE", f"/keys/{quote(name, safe='')}")
        print(f"Key {name} is good no more.")
        return 0
    print(client.call("POST", "/keys", _wanted(name, arguments))["key"])
    print("It is shown this once: keep it.", file=sys.stderr)
    return 0


def _wanted(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    fields = ("tenant", "priority", "models")
    limits: dict[str, Any] = {field: arguments[field] for field in _LIMITS if field in arguments}
    budgets = [
        {"amount": arguments[f"budget_{period}"], "per": period}
        for period in _BUDGETS
        if f"budget_{period}" in arguments
    ]
    wanted = {"name": name, **{field: arguments[field] for field in fields if field in arguments}}
    if "expires_in" in arguments:
        try:
            wanted["expires_in"] = parse_duration(arguments["expires_in"])
        except ValueError as error:
            raise ConfigError(f"--expires-in: {error}") from None
    return {**wanted, "limits": {**limits, "budgets": budgets}}


def _key_row(key: Mapping[str, Any]) -> dict[str, Any]:
    state = "configured" if key["is_configured"] else "created"
    return {
        **key,
        "models": key["models"] or "all",
        "state": "revoked" if key.get("revoked") else state,
    }


def _columns(found: Mapping[str, Any]) -> tuple[str, ...]:
    groups = found["usage"][0]["group"] if found["usage"] else {}
    return (*groups, *_SUMS)


def _show(
    arguments: Mapping[str, Any],
    found: Any,
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
) -> None:
    if arguments.get("json"):
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")
    else:
        print(table(rows, columns))
