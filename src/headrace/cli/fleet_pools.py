"""`headrace fleet pools`, `scale` and `decisions`: what an autoscaler has, was told, and decided."""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from headrace.cli.admin_client import add_gateway, admin_client
from headrace.cli.flags import Parser
from headrace.cli.tables import table
from headrace.config.fleet.pools import unknown_pool
from headrace.config.units import counted
from headrace.core.errors import ConfigError

AUTO = "auto"
_POOLS = ("pool", "model", "ready", "pending", "warm", "wanted", "bounds", "policy", "why")
_INSTANCES = ("instance", "pool", "phase", "for", "version", "requests", "reason")


def pools_main(argv: Sequence[str]) -> int:
    """Show every pool, or one pool's instances."""
    parser = Parser("headrace fleet pools", "Pools: what they have, and why.", "[POOL]")
    parser.add_argument("pool", metavar="POOL", nargs="?", help="show the instances of this one")
    add_gateway(parser)
    arguments = parser.parse(argv)
    found = admin_client(arguments).call("GET", "/pools")
    if arguments.get("json"):
        _print_json(found)
        return 0
    name = arguments.get("pool")
    if name is None:
        print(table([_pool_row(pool) for pool in found["pools"]], _POOLS))
        for line in _remarks(found):
            print(line)
        return 0
    pool = next((pool for pool in found["pools"] if pool["name"] == name), None)
    if pool is None:
        raise ConfigError(unknown_pool(name, [pool["name"] for pool in found["pools"]]))
    print(table([_instance_row(pool, instance) for instance in pool["instances"]], _INSTANCES))
    return 0


def scale_main(argv: Sequence[str]) -> int:
    """Set a pool's size, whatever its policy says; `auto` gives it back."""
    parser = Parser("headrace fleet scale", "Set the size of a pool.", "POOL N|auto")
    parser.add_argument("pool", metavar="POOL", help="its name")
    parser.add_argument("replicas", metavar="N", help="replicas, or auto: by its policy again")
    add_gateway(parser)
    arguments = parser.parse(argv)
    text = arguments["replicas"]
    if text != AUTO and not (text.isascii() and text.isdecimal() and len(text) < 7):
        raise ConfigError(f"'{text}' is neither a number of replicas nor auto.")
    body = {"replicas": None if text == AUTO else int(text)}
    path = f"/pools/{quote(arguments['pool'], safe='')}/scale"
    print(admin_client(arguments).call("POST", path, body)["message"])
    return 0


def decisions_main(argv: Sequence[str]) -> int:
    """Print the decision log, oldest first."""
    parser = Parser("headrace fleet decisions", "What the autoscaler decided and did, and why.")
    parser.add_argument("--pool", metavar="POOL", help="of this pool")
    parser.add_argument("--count", metavar="N", type=int, default=30, help="so many, the newest")
    add_gateway(parser)
    arguments = parser.parse(argv)
    query = {"count": arguments["count"]}
    if arguments.get("pool"):
        query["pool"] = arguments["pool"]
    found = admin_client(arguments).call("GET", f"/decisions?{urlencode(query)}")
    if arguments.get("json"):
        _print_json(found)
        return 0
    for entry in found["decisions"]:
        print(decision_line(entry))
    return 0


def decision_line(entry: Mapping[str, Any]) -> str:
    """One entry for people: when, whose, what, why."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["at"]))
    head = f"{when}  {entry['pool']}"
    if entry["kind"] != "decision":
        mark = "! " if entry["kind"] == "fault" else ""
        subject = f"{entry['instance']} " if entry.get("instance") else ""
        return f"{head}  {mark}{subject}{entry['text']}"
    change = f"{entry['current']} -> {entry['desired']}"
    limits = f", limited by {entry['limited_by']}" if entry.get("limited_by") else ""
    advice = " (only advice)" if entry.get("is_advisory") else ""
    return f"{head}  {change}  {entry['policy']}: {entry['text']}{limits}{advice}"


def override_lines(found: Mapping[str, Any]) -> list[str]:
    """Of the answer of `/admin/pools`: which pools an operator has set, and how they are given back."""
    return [
        f"{pool['name']}: set to {counted(pool['override'], 'replica')} by an operator, until "
        f"`headrace fleet scale {pool['name']} auto` or the end of the fleet."
        for pool in found["pools"]
        if pool.get("override") is not None
    ]


def _pool_row(pool: Mapping[str, Any]) -> dict[str, Any]:
    phases = [instance["phase"] for instance in pool["instances"]]
    decision = pool["decision"] or {}
    limit = f" ({decision['limited_by']})" if decision.get("limited_by") else ""
    return {
        "pool": pool["name"],
        "model": pool["model"],
        "ready": phases.count("ready"),
        "pending": phases.count("starting") + phases.count("unready"),
        "warm": phases.count("warm"),
        "wanted": decision.get("desired", "-"),
        "bounds": f"{pool['min_replicas']}-{pool['max_replicas']}",
        "policy": decision.get("policy", "-"),
        "why": f"{decision.get('reason', 'nothing was decided yet')}{limit}",
    }


def _instance_row(pool: Mapping[str, Any], instance: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "instance": instance["id"],
        "pool": pool["name"],
        "phase": instance["phase"],
        "for": f"{instance['seconds']:.0f} s",
        "version": instance["version"] or instance["revision"],
        "requests": instance["num_requests"],
        "reason": instance["reason"],
    }


def _remarks(found: Mapping[str, Any]) -> list[str]:
    lines = []
    if not found["is_active"]:
        lines.append("Another gateway's autoscaler acts for this fleet.")
    if found["is_advisory"]:
        lines.append("Advisory mode: nothing is started or stopped.")
    lines += override_lines(found)
    for pool in found["pools"]:
        if pool["is_crash_loop"]:
            lines.append(f"{pool['name']}: {pool['num_failures']} replicas in a row have failed.")
        rollout = pool["rollout"]
        if rollout is not None:
            way = f"{rollout['old']} -> {rollout['new']}"
            state = f"was given up: {rollout['reason']}" if rollout["is_back"] else "goes on"
            lines.append(f"{pool['name']}: the rollout {way} {state}.")
    return lines


def _print_json(found: Any) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")
