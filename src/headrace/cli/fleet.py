"""`headrace fleet ACTION`: show and change the replicas behind a running gateway."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from headrace.cli.admin_client import AdminClient, add_gateway, admin_client
from headrace.cli.flags import Parser
from headrace.cli.fleet_accounts import keys_main, usage_main
from headrace.cli.tables import table
from headrace.core.errors import ConfigError

#: What has a command line of its own.
PARTS = {"keys": keys_main, "usage": usage_main}
ACTIONS = {
    "status": "Show every replica: its standing, what it has to do, how fast it is.",
    "add": "Add a replica by its URL, or change one that was added.",
    "drain": "Send a replica nothing new; what it has is finished.",
    "undrain": "Let a replica take part again.",
    "remove": "Drain a replica and forget it.",
    "reload": "Have the gateway read its configuration again.",
}
_COLUMNS = (
    "id",
    "standing",
    "circuit",
    "version",
    "num_requests",
    "num_running",
    "num_waiting",
    "models",
)


def main(argv: Sequence[str]) -> int:
    """One action. 1 if the gateway refuses it."""
    if argv and argv[0] in PARTS:
        return PARTS[argv[0]](argv[1:])
    arguments = make_parser().parse(argv)
    action, target = arguments["action"], arguments.get("target")
    if (target is None) != (action in ("status", "reload")):
        raise ConfigError(f"`headrace fleet {action}` takes {'no' if target else 'a'} replica.")
    client = admin_client(arguments)
    if action == "status":
        found = client.call("GET", "/replicas")
        if arguments.get("json"):
            sys.stdout.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")
        else:
            print(table(found["replicas"], _COLUMNS))
        return 0
    print(_change(client, action, target, arguments)["message"])
    return 0


def make_parser() -> Parser:
    """The parser of `headrace fleet`."""
    parser = Parser(
        "headrace fleet",
        "Show and change a gateway's replicas, or its `keys` and `usage` (each has a --help).",
        "ACTION [REPLICA]",
    )
    parser.add_argument(
        "action", metavar="ACTION", nargs="?", default="status", choices=ACTIONS,
        help="; ".join(f"{name}: {text[:1].lower()}{text[1:-1]}" for name, text in ACTIONS.items()),
    )  # fmt: skip
    parser.add_argument("target", metavar="REPLICA", nargs="?", help="its id; for add, its URL")
    add_gateway(parser)
    for name, text in (
        ("--id", "for add: its name"),
        ("--dialect", "for add: headrace (default), vllm, sglang, llamacpp, …"),
        ("--version", "for add: a word for what is deployed"),
    ):
        parser.add_argument(name, metavar=name[2:].upper(), help=text)
    return parser


def _change(
    client: AdminClient, action: str, target: str | None, arguments: Mapping[str, Any]
) -> Any:
    if action == "reload":
        return client.call("POST", "/reload")
    assert target is not None
    if action == "add":
        names = ("id", "dialect", "version")
        chosen = {name: arguments[name] for name in names if arguments.get(name)}
        return client.call("POST", "/replicas", {"url": target, **chosen})
    path = f"/replicas/{quote(target, safe='')}"
    if action == "remove":
        return client.call("DELETE", path)
    return client.call("POST", f"{path}/{action}")
