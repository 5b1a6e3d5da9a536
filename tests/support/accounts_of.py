"""Accounts for tests: a directory of keys over a store."""

from typing import Any

import msgspec

from headrace.config.fleet.accounts import AccountsConfig
from headrace.config.fleet.flow import FlowConfig
from headrace.config.secret import Secret
from headrace.core.clock import Clock
from headrace.fleet.gateway.accounts.account import Account
from headrace.fleet.gateway.accounts.accounts import Accounts
from headrace.fleet.gateway.accounts.directory import Directory
from headrace.fleet.gateway.accounts.store import Store
from headrace.web.asgi import Scope

TWO_CLASSES = {
    "classes": [{"name": "interactive", "rank": 1}, {"name": "batch", "sheddable": True}]
}


def accounts_config(**fields: Any) -> AccountsConfig:
    """As read from a file."""
    return msgspec.convert(fields, AccountsConfig, dec_hook=lambda kind, text: kind(text))


def flow_config(**fields: Any) -> FlowConfig:
    """As read from a file."""
    return msgspec.convert(fields, FlowConfig)


def key(name: str, **fields: Any) -> dict[str, Any]:
    """A key of the file, whose text is `secret-NAME`."""
    return {"name": name, "key": Secret(f"secret-{name}"), **fields}


def accounts_over(store: Store, clock: Clock, *, flow: Any = None, **fields: Any) -> Accounts:
    """Accounts of these tables."""
    directory = Directory(accounts_config(**fields), flow_config(**(flow or {})), clock)
    return Accounts(directory, store, clock)


def scope_with(**headers: str) -> Scope:
    """A request with these headers; `_` stands for `-`."""
    return {
        "type": "http",
        "headers": [
            (name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()
        ],
    }


def account_of(accounts: Accounts, name: str) -> Account:
    """Of the key `secret-NAME`."""
    return accounts.authenticate(scope_with(authorization=f"Bearer secret-{name}"))
