"""Accounts: who may call, how much, and where that is kept."""

import re
from collections.abc import Set
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from headrace.config.fleet.cache import CacheMode
from headrace.config.fleet.names import no_such
from headrace.config.secret import Secret
from headrace.core.errors import ConfigError

Seconds = Annotated[float, Meta(gt=0, extra={"unit": "seconds"})]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
#: Whose requests without a key are.
ANONYMOUS_TENANT = "anonymous"
#: The largest budget: a billionth of a unit is counted, and sums stay exact in a double (2^53).
MAX_MONEY = 8_000_000.0
_HASHED = re.compile(r"sha256:[0-9a-fA-F]{64}")


class BudgetPeriod(StrEnum):
    """When a budget begins anew; days and months are UTC's."""

    DAY = "day"
    MONTH = "month"
    TOTAL = "total"
    """Never."""


class Budget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Money that may be spent in a period, in the currency of the replicas' prices."""

    amount: Annotated[float, Meta(ge=0, le=MAX_MONEY)]
    per: BudgetPeriod = BudgetPeriod.MONTH
    """day, month or total."""


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one key, or all keys of one tenant together, may use. What is not set is not limited."""

    requests_per_minute: Annotated[int, Meta(ge=1, le=10**9)] | None = None
    """A bucket of that many requests, filled evenly: in any t seconds at most this many, and t/60 times as many."""
    tokens_per_minute: Annotated[int, Meta(ge=1, le=10**12)] | None = None
    """The same with tokens, prompt and answer: set aside when a request begins, corrected when it ends."""
    concurrency: Annotated[int, Meta(ge=1, le=10**6)] | None = None
    """Requests at once, those that wait included."""
    budgets: tuple[Budget, ...] = ()
    """Money; each must cover a request."""

    def __post_init__(self) -> None:
        """Raises ConfigError for two budgets of one period."""
        periods = [budget.per for budget in self.budgets]
        if len(set(periods)) < len(periods):
            raise ConfigError("limits.budgets has two budgets of one period.", place="budgets")


class KeyConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An API key. Its text may be given as its SHA-256."""

    name: Name
    """For people, logs, metrics and the ledger."""
    key: Secret
    """The key, or `sha256:` and 64 hexadecimal digits."""
    tenant: Name | None = None
    """Whose key it is; default: a tenant of the key's own name."""
    priority: str = ""
    """Class of its requests; default its tenant's."""
    models: tuple[str, ...] = ()
    """Models that it may use, with `*` for any text; none: all."""
    cache: CacheMode = CacheMode.AUTO
    """What its requests want of the response cache, unless they say: auto, use, bypass (final), refresh or only."""
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        """Raises ConfigError, which does not quote the key."""
        text = str(self.key)
        if text.startswith("sha256:") and not _HASHED.fullmatch(text):
            raise ConfigError(
                f"key of '{self.name}' is not 64 hexadecimal digits after 'sha256:'.", place="key"
            )
        if not text or not text.isascii() or not text.isprintable() or " " in text:
            raise ConfigError(
                f"key of '{self.name}' must be printable ASCII without spaces.", place="key"
            )


class TenantConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A customer, team or application: what its keys share."""

    name: Name
    priority: str = ""
    """Class of its requests; default `flow.default_class`."""
    weight: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    """Its share of busy replicas beside other tenants'."""
    limits: Limits = Limits()
    """For all its keys together."""


class RedisConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits, money and created keys that several gateways share. Needs `headrace[redis]`."""

    url: Secret
    """redis://[user:password@]host:port/database, or rediss:// for TLS."""
    prefix: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}$")] = "headrace"
    """In front of all names in the database."""
    timeout: Seconds = 0.5
    """Seconds that a request waits for Redis."""
    lease: Seconds = 60.0
    """Seconds after which what a gateway set aside is settled by the others, if it is no longer heard of."""
    fail_open: bool = False
    """While Redis cannot be reached, let requests in uncounted; by default they are answered 503."""
    refresh: Seconds = 2.0
    """Seconds until a key that was created or revoked at another gateway is known here."""


class UsageConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ledger: one row for each request, without its text."""

    max_rows: Annotated[int, Meta(ge=1)] = 5_000_000
    """Rows that are kept; the oldest go first."""
    max_age_days: Annotated[float, Meta(gt=0)] = 400.0
    """Days that rows are kept."""
    max_buffered: Annotated[int, Meta(ge=1)] = 20_000
    """Rows that wait to be written; more are dropped and counted."""
    flush_period: Seconds = 1.0
    """Seconds between two writes."""


class AccountsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys and tenants. With any key, configured or created, nobody gets in without one."""

    required: bool = False
    """Nobody gets in without a key, even while there is none."""
    keys: tuple[KeyConfig, ...] = ()
    tenants: tuple[TenantConfig, ...] = ()
    anonymous: Limits = Limits()
    """For all requests without a key together, where none is needed."""
    directory: str | None = None
    """Where created keys, money and the ledger are kept (SQLite); of one gateway only. Without it there are no
    created keys and no ledger, and budgets only with `redis`."""
    redis: RedisConfig | None = None
    charge_lost: bool = True
    """What was set aside for requests whose gateway died is counted as spent; otherwise it is given back."""
    usage: UsageConfig = UsageConfig()

    def __post_init__(self) -> None:
        """Raises ConfigError for tables that contradict each other."""
        _refuse_repeats("keys", [key.name for key in self.keys])
        tenants = [tenant.name for tenant in self.tenants]
        _refuse_repeats("tenants", tenants)
        for index, key in enumerate(self.keys if tenants else ()):
            # A tenant that a slip made up would have no limits.
            if key.tenant not in (None, key.name, *tenants):
                raise ConfigError(
                    no_such("tenant", str(key.tenant), tenants), place=f"keys[{index}].tenant"
                )
        limits = [self.anonymous, *(k.limits for k in self.keys), *(t.limits for t in self.tenants)]
        has_budgets = any(each.budgets for each in limits)
        if has_budgets and self.directory is None and self.redis is None:
            raise ConfigError(
                "Budgets need accounts.directory, or accounts.redis: what is spent must outlive the gateway."
            )

    @property
    def tenant_names(self) -> list[str]:
        """Every tenant that is declared, or that a configured key is of."""
        return [*(tenant.name for tenant in self.tenants), *(k.tenant or k.name for k in self.keys)]

    @property
    def has_created_keys(self) -> bool:
        """Keys may be made while the gateway runs, each of which may be a tenant of its own."""
        return self.directory is not None or self.redis is not None

    def check_priorities(self, classes: Set[str]) -> None:
        """Raises ConfigError for a key or tenant of a class that is not in `classes`."""
        given = [
            (f"keys[{index}]", f"key '{key.name}'", key.priority)
            for index, key in enumerate(self.keys)
        ]
        given += [
            (f"tenants[{index}]", f"tenant '{tenant.name}'", tenant.priority)
            for index, tenant in enumerate(self.tenants)
        ]
        for place, owner, priority in given:
            if priority and priority not in classes:
                raise ConfigError(
                    f"The {owner} has the priority '{priority}', which is no class of flow.classes.",
                    place=f"accounts.{place}.priority",
                )


def _refuse_repeats(where: str, names: list[str]) -> None:
    for number, name in enumerate(names):
        if name in names[:number]:
            raise ConfigError(
                f"accounts.{where} has '{name}' twice.", place=f"{where}[{number}].name"
            )
