"""Accounts of one gateway of several that share a Redis."""

import asyncio

from tests.support.accounts_of import account_of, accounts_config, accounts_over, key
from tests.support.patience import PATIENCE

from headrace.core.clock import SystemClock
from headrace.fleet.gateway.accounts.accounts import Accounts
from headrace.fleet.gateway.accounts.meters import Estimate
from headrace.fleet.gateway.accounts.money import nano
from headrace.fleet.gateway.accounts.redis_store import RedisStore
from headrace.observe.metrics import Metrics

TOTAL = {"budgets": [{"amount": 50.0, "per": "total"}]}
"""Limits of a key: money, 50 in all."""


class Gateway:
    """One gateway's accounts."""

    def __init__(self, url: str, prefix: str, *, limits=None, charge_lost=True, **redis) -> None:
        tables = {"redis": {"url": url, "prefix": prefix, "timeout": PATIENCE, **redis}}
        self.metrics = Metrics()
        config = accounts_config(**tables).redis
        assert config is not None
        clock = SystemClock()
        self.store = RedisStore(config, clock, self.metrics, charge_lost=charge_lost)
        self.accounts: Accounts = accounts_over(
            self.store, clock, keys=[key("a", limits=limits or {})], **tables
        )
        self.account = account_of(self.accounts, "a")

    async def __aenter__(self) -> "Gateway":
        await self.store.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.accounts.close()

    async def reserve(self, cost: float = 0.0, tokens: int = 0):
        return await self.accounts.reserve(
            self.account, Estimate(prompt_tokens=tokens, cost=nano(cost))
        )

    async def settled(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.store.backlog:  # noqa: ASYNC110  it tells nobody
                await asyncio.sleep(0.01)

    async def money(self) -> tuple[float, float]:
        await self.settled()
        (found,) = await self.accounts.budgets(self.account)
        return found.spent, found.set_aside

    async def die(self) -> None:
        """As kill -9 would end it: nothing is settled or renewed any more."""
        for task in self.store._tasks:
            task.cancel()
        await asyncio.gather(*self.store._tasks, return_exceptions=True)
        self.store._pending.clear()
        await self.store._redis.aclose()
