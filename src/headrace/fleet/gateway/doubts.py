"""What is well formed and yet hardly meant: told at a check and at a start, and refused by neither. Pure."""

from collections.abc import Iterable

from headrace.config.fleet.accounts import AccountsConfig
from headrace.config.fleet.replicas import Price, ReplicaSpec
from headrace.config.fleet.root import FleetConfig


def doubts(config: FleetConfig, replicas: Iterable[ReplicaSpec]) -> list[str]:
    """Whole sentences. `replicas` are all that are known, wherever they come from.

    Prices may still come with replicas that are added while the gateway runs, so that none is no error.
    """
    prices = [*(spec.price for spec in replicas), *(pool.price for pool in config.pools)]
    if not _has_budgets(config.accounts) or any(map(_asks, prices)):
        return []
    return [
        "Budgets are set and no replica or pool has a price: requests cost 0, and no budget is ever used up. "
        "Set `price` at the replicas or pools."
    ]


def _has_budgets(accounts: AccountsConfig) -> bool:
    of_keys, of_tenants = (
        (key.limits for key in accounts.keys),
        (t.limits for t in accounts.tenants),
    )
    return any(limits.budgets for limits in (accounts.anonymous, *of_keys, *of_tenants))


def _asks(price: Price) -> bool:
    return any((price.input, price.cached_input, price.output))
