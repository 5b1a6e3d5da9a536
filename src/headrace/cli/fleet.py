"""`headrace fleet ACTION`: show and change the replicas behind a running gateway."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from headrace.cli.admin_client import AdminClient, add_gateway, admin_client
from headrace.cli.flags import Parser
from headrace.cli.fleet_accounts import keys_main, usage_main
from headrace.cli.fleet_alerts import alerts_main, slos_main
from headrace.cli.fleet_pools import decisions_main, override_lines, pools_main, scale_main
from headrace.cli.tables import table
from headrace.core.errors import ConfigError

#: What has a command line of its own.
PARTS = {
    "keys": keys_main,
    "usage": usage_main,
    "alerts": alerts_main,
    "slos": slos_main,
    "pools": pools_main,
    "scale": scale_main,
    "decisions": decisions_main,
}
ACTIONS = {
    "status": "Show every replica: its standing, what it has to do, how fast it is.",
    "add": "Add a replica by its URL, or change one: what is not named stays.",
    "drain": "Send a replica nothing new; what it has is finished.",
    "undrain": "Let a replica take part again.",
    "remove": "Drain a replica and forget it; one of the file is drained only, and what was changed of it is taken back.",
    "canaries": "Show how every canary stands.",
    "reset": "Try the canary of a rule again that was switched off.",
    "reload": "Have the gateway read its configuration again.",
}
_SWITCHES = ("-h", "--help", "--json")
_COLUMNS = (
    "id",
    "standing",
    "circuit",
    "version",
    "num_requests",
    "num_running",
    "num_waiting",
    "models",
    "reason",
)
#: What only shows: of which list which columns.
_SHOWN = {
    "status": ("replicas", _COLUMNS),
    "canaries": ("canaries", ("rule", "state", "reason", "breaches")),
}


def main(argv: Sequence[str]) -> int:
    """One action. 1 if the gateway refuses it."""
    at = _first_word(argv)
    if at is not None and argv[at] in PARTS:
        return PARTS[argv[at]]([*argv[:at], *argv[at + 1 :]])
    if at is not None and argv[at] not in ACTIONS:
        raise ConfigError(
            f"'{argv[at]}' is no action of `headrace fleet`; these are: {', '.join((*ACTIONS, *PARTS))}."
        )
    arguments = make_parser().parse(argv)
    action, target = arguments["action"], arguments.get("target")
    if (target is None) != (action in ("status", "canaries", "reload")):
        what = "rule" if action == "reset" else "replica"
        raise ConfigError(f"`headrace fleet {action}` takes {'no' if target else 'a'} {what}.")
    client = admin_client(arguments)
    if action in _SHOWN:
        what, columns = _SHOWN[action]
        found = client.call("GET", f"/{what}")
        if arguments.get("json"):
            sys.stdout.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")
        else:
            print(table(found[what], columns))
            for line in _overrides(client) if action == "status" else ():
                print(line)
        return 0
    print(_change(client, action, target, arguments)["message"])
    return 0


def _first_word(argv: Sequence[str]) -> int | None:
    """Where the action stands: options may come before it."""
    at = 0
    while at < len(argv) and argv[at].startswith("-"):
        has_value = argv[at] not in _SWITCHES and "=" not in argv[at]
        at += 2 if has_value else 1
    return at if at < len(argv) else None


def make_parser() -> Parser:
    """The parser of `headrace fleet`."""
    parser = Parser(
        "headrace fleet",
        "Show and change a gateway's replicas, or its `keys`, `usage`, `slos`, `alerts`, `pools`, `decisions`; `scale` a pool "
        "(each has a --help).",
        "ACTION [REPLICA]",
    )
    parser.add_argument(
        "action", metavar="ACTION", nargs="?", default="status", choices=ACTIONS,
        help="; ".join(f"{name}: {text[:1].lower()}{text[1:-1]}" for name, text in ACTIONS.items()),
    )  # fmt: skip
    parser.add_argument(
        "target", metavar="REPLICA", nargs="?", help="its id; for add, its URL; for reset, the rule"
    )
    add_gateway(parser)
    for name, text in (
        ("--id", "for add: its name"),
        ("--dialect", "for add: headrace (default), vllm, sglang, llamacpp, …"),
        ("--version", "for add: a word for what is deployed"),
        ("--peer-token", "for add: its --trusted-peer-token"),
        ("--api-key", "for add: the key that it is sent"),
    ):
        parser.add_argument(name, metavar=name.rpartition("-")[2].upper(), help=text)
    return parser


def _overrides(client: AdminClient) -> list[str]:
    """What operators have set; nothing of a gateway without pools."""
    try:
        return override_lines(client.call("GET", "/pools"))
    except ConfigError:
        return []


def _change(
    client: AdminClient, action: str, target: str | None, arguments: Mapping[str, Any]
) -> Any:
    if action == "reload":
        return client.call("POST", "/reload")
    assert target is not None
    if action == "add":
        names = ("id", "dialect", "version", "peer_token", "api_key")
        chosen = {name: arguments[name] for name in names if arguments.get(name)}
        return client.call("POST", "/replicas", {"url": target, **chosen})
    if action == "reset":
        return client.call("POST", f"/canaries/{quote(target, safe='')}/reset")
    if "/" in target:
        raise ConfigError(f"'{target}' is no replica's id: `headrace fleet` shows them.")
    path = f"/replicas/{quote(target, safe='')}"
    if action == "remove":
        return client.call("DELETE", path)
    return client.call("POST", f"{path}/{action}")
