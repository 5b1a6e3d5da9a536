"""Accounts of one gateway: who calls, may it, and what is set aside for it."""

import secrets
from collections.abc import Callable
from typing import Final

import msgspec

from headrace.config.fleet.accounts import AccountsConfig
from headrace.config.fleet.flow import FlowConfig
from headrace.core.clock import Clock
from headrace.core.errors import (
    AuthenticationError,
    BadRequestError,
    HeadraceError,
    NotFoundError,
)
from headrace.fleet.gateway.accounts.account import Account, CreatedKey, KeyInfo, NewKey
from headrace.fleet.gateway.accounts.directory import Directory
from headrace.fleet.gateway.accounts.meters import (
    Estimate,
    Hold,
    MeterKind,
    error_for,
    meters_for,
)
from headrace.fleet.gateway.accounts.money import amount
from headrace.fleet.gateway.accounts.reservation import Reservation
from headrace.fleet.gateway.accounts.store import Store
from headrace.web.asgi import Scope, header

REASONS: Final = {
    MeterKind.REQUESTS: "requests",
    MeterKind.TOKENS: "tokens",
    MeterKind.PLACES: "concurrency",
    MeterKind.MONEY: "budget",
}


class BudgetState(msgspec.Struct, frozen=True, kw_only=True):
    """One budget of a key or tenant, now."""

    owner: str
    period: str
    amount: float
    spent: float
    set_aside: float


class Accounts:
    """The door of the gateway, and the desk where operators make keys."""

    def __init__(
        self,
        directory: Directory,
        store: Store,
        clock: Clock,
        on_refused: Callable[[Account, str], None] = lambda _account, _reason: None,
    ) -> None:
        """`on_refused` is told of requests that a limit turned away: requests, tokens, concurrency, budget, store."""
        self._directory = directory
        self._store = store
        self._clock = clock
        self._on_refused = on_refused
        self._number = 0
        # Unique over all gateways that share a store.
        self._origin = secrets.token_hex(8)

    async def load(self) -> None:
        """Read the created keys; at the start, and now and then where gateways share them."""
        self._directory.load(await self._store.keys())

    def configure(self, accounts: AccountsConfig, flow: FlowConfig) -> None:
        """Another fleet file. Raises ConfigError; then everything stays as it was. The store stays in any case."""
        self._directory.configure(accounts, flow)

    def authenticate(self, scope: Scope) -> Account:
        """Who sends a request. Raises AuthenticationError."""
        bearer = header(scope, b"authorization") or ""
        scheme, _, token = bearer.partition(" ")
        given = [header(scope, b"x-api-key"), token.strip() if scheme.lower() == "bearer" else None]
        for text in filter(None, given):
            account = self._directory.find(text)
            if account is not None:
                return account
        if self._directory.is_open:
            return self._directory.anonymous()
        if any(given):
            raise AuthenticationError("The API key is not valid for this gateway.")
        raise AuthenticationError(
            "This gateway needs an API key: send 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
        )

    async def reserve(self, account: Account, estimate: Estimate) -> Reservation:
        """Set aside what a request may come to. The caller must settle or release it.

        Raises RateLimitError or BudgetExceededError (429), or UnavailableError where the store cannot be reached.
        A caller that is cancelled meanwhile has nothing set aside.
        """
        now = self._clock.wall()
        meters = meters_for(account, estimate, now)
        if not meters:
            return Reservation(self._store, account, None)
        self._number += 1
        hold = Hold(f"{self._origin}-{self._number}", meters, now)
        try:
            refusal = await self._store.take(hold)
        except HeadraceError:
            self._on_refused(account, "store")
            raise
        if refusal is not None:
            self._on_refused(account, REASONS[refusal.meter.kind])
            raise error_for(refusal)
        return Reservation(self._store, account, hold)

    # -- for operators ----------------------------------------------------------------------------

    def list_keys(self) -> tuple[KeyInfo, ...]:
        """All keys by name, without their texts."""
        return self._directory.list()

    async def create_key(self, wanted: NewKey) -> CreatedKey:
        """Raises BadRequestError that names the field, or ConfigError where keys cannot be kept."""
        stored, created = self._directory.create(wanted)
        if not await self._store.put_key(stored, is_new=True):
            raise BadRequestError(f"There is a key '{wanted.name}' already.", param="name")
        self._directory.put(stored)
        return created

    async def revoke_key(self, name: str) -> KeyInfo:
        """Good no more, at once; it stays in the list. Raises NotFoundError, or BadRequestError for a key of the file."""
        if self._directory.is_configured(name):
            raise BadRequestError(
                f"The key '{name}' stands in the fleet's file: take it out there.", param="name"
            )
        key = self._directory.stored(name)
        if key is None:
            raise NotFoundError(f"There is no key '{name}'.")
        if key.revoked is None:
            key = msgspec.structs.replace(key, revoked=self._clock.wall())
            # Good no more even while the store cannot be written.
            self._directory.put(key)
        # Also where it was revoked before: the store may not have learnt of it then.
        await self._store.put_key(key, is_new=False)
        return self._directory.info(key)

    async def budgets(self, account: Account) -> tuple[BudgetState, ...]:
        """What is spent and set aside of an account's budgets, its tenant's too."""
        meters = [
            meter
            for meter in meters_for(account, Estimate(cost=1), self._clock.wall())
            if meter.kind is MeterKind.MONEY
        ]
        found = await self._store.money(tuple(meter.id for meter in meters))
        return tuple(
            BudgetState(
                owner=meter.owner,
                period=meter.id.split("/", 2)[2],
                amount=amount(meter.limit),
                spent=amount(found[meter.id][0]),
                set_aside=amount(found[meter.id][1]),
            )
            for meter in meters
        )

    async def close(self) -> None:
        """Write what waits."""
        await self._store.close()
