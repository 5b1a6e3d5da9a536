"""What is well formed and yet hardly meant: told at a check and at a start, and refused by neither. Pure."""

from collections.abc import Iterable

from headrace.config.fleet.accounts import AccountsConfig
from headrace.config.fleet.replicas import Price, ReplicaSpec
from headrace.config.fleet.root import FleetConfig
from headrace.web.port import is_local


def doubts(config: FleetConfig, replicas: Iterable[ReplicaSpec]) -> list[str]:
    """Whole sentences. `replicas` are all that are known, wherever they come from.

    Replicas, and prices with them, may still be added while the gateway runs, so that none is no error.
    """
    known = list(replicas)
    found = [] if known or config.pools else [_waiting_for(config)]
    if _is_open(config):
        found.append(
            f"There are no keys, and whoever reaches {config.gateway.host} may use every model; see accounts.keys."
        )
    found += [f"'{place}': {sentence}" for place, sentence in config.strange_grants()]
    prices = [*(spec.price for spec in known), *(pool.price for pool in config.pools)]
    if not _has_budgets(config.accounts) or any(map(_asks, prices)):
        return found
    return [
        *found,
        "Budgets are set and no replica or pool has a price: requests cost 0, and no budget is ever used up. "
        "Set `price` at the replicas or pools.",
    ]


def _waiting_for(config: FleetConfig) -> str:
    """Where the first replica may come from."""
    ways = ["under `replicas` and a reload"]
    if config.gateway.admin_keys is not None:
        ways.insert(0, "by `headrace fleet add URL`")
    if config.discovery.file is not None:
        ways.insert(0, f"in {config.discovery.file}")
    way = f"{', '.join(ways[:-1])} or {ways[-1]}" if len(ways) > 1 else ways[0]
    patience = f"{config.flow.cold_wait:g} s (flow.cold_wait)"
    return f"There is no replica: requests wait up to {patience} for one, and are refused then. Name one {way}."


def _is_open(config: FleetConfig) -> bool:
    """Others than this machine may call without a key, and none can be made that would end it."""
    accounts = config.accounts
    if accounts.keys or accounts.required or accounts.has_created_keys:
        return False
    return not is_local(config.gateway.host)


def _has_budgets(accounts: AccountsConfig) -> bool:
    of_keys, of_tenants = (
        (key.limits for key in accounts.keys),
        (t.limits for t in accounts.tenants),
    )
    return any(limits.budgets for limits in (accounts.anonymous, *of_keys, *of_tenants))


def _asks(price: Price) -> bool:
    return any((price.input, price.cached_input, price.output))
