"""Accounts put together from the fleet's file: which store, whether there is a ledger, and what runs beside."""

import asyncio
import logging
from collections.abc import Callable

from headrace.config.fleet.root import FleetConfig
from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError
from headrace.fleet.gateway.accounts.account import Account
from headrace.fleet.gateway.accounts.accounts import Accounts
from headrace.fleet.gateway.accounts.database import Database
from headrace.fleet.gateway.accounts.directory import Directory
from headrace.fleet.gateway.accounts.journal import Journal
from headrace.fleet.gateway.accounts.ledger import Ledger
from headrace.fleet.gateway.accounts.local_store import LocalStore
from headrace.fleet.gateway.accounts.store import Store
from headrace.fleet.gateway.accounts.usage import UsageReader
from headrace.observe.catalogue import ACCOUNT_BACKLOG, ACCOUNT_HOLDS, ACCOUNT_REFUSED
from headrace.observe.labels import BoundedNames
from headrace.observe.metrics import Metrics

log = logging.getLogger("headrace.fleet")


class Books:
    """The accounts of one gateway, open: `accounts` at the door, `ledger` at the end of a request, `usage` to read it."""

    def __init__(
        self,
        config: FleetConfig,
        clock: Clock,
        metrics: Metrics,
        model_label: Callable[[str], str] = str,
    ) -> None:
        """Raises ConfigError. Reads the disk; `start` when there is an event loop."""
        self._config = config.accounts
        self._metrics = metrics
        self._names = BoundedNames()
        directory = Directory(config.accounts, config.flow, clock, is_loaded=False)
        self._journal: Journal | None = None
        self.usage: UsageReader | None = None
        """None without a directory."""
        self._store = self._open(clock)
        self.accounts = Accounts(directory, self._store, clock, self._refused)
        self.ledger = Ledger(config.accounts.usage, clock, metrics, self._journal, model_label)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Know the created keys, and go on writing and refreshing.

        Without Redis a gateway starts all the same: keys of the file are known, and what is limited is answered 503.
        """
        await self._store.start()
        await self._refresh_now()
        self._tasks = [
            asyncio.create_task(self._write_usage(), name="usage"),
            asyncio.create_task(self._refresh(), name="accounts"),
        ]

    async def close(self) -> None:
        """Write everything and give the directory back. Requests should have ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.ledger.flush()
        await self.accounts.close()
        if self._journal is not None:
            await asyncio.to_thread(self._journal.close)

    def write_gauges(self) -> None:
        """Bring the gauges up to date; before metrics are read."""
        backlog = self._store.backlog + (self._journal.backlog if self._journal is not None else 0)
        self._metrics.set(ACCOUNT_BACKLOG, (), backlog)
        self._metrics.set(ACCOUNT_HOLDS, (), self._store.num_holds)

    def _open(self, clock: Clock) -> Store:
        config = self._config
        database = Database(config.directory) if config.directory is not None else None
        try:
            if config.redis is not None:
                # Only those who have it configured need the library.
                from headrace.fleet.gateway.accounts.redis_store import RedisStore

                store: Store = RedisStore(
                    config.redis, clock, self._metrics, charge_lost=config.charge_lost
                )
                if database is not None:
                    self._journal = Journal(database)
            elif database is not None:
                self._journal = Journal(database)
                store = LocalStore.opened(
                    clock,
                    self._journal,
                    database.connection,
                    charge_lost=config.charge_lost,
                    metrics=self._metrics,
                )
            else:
                store = LocalStore(clock)
        except BaseException:
            if self._journal is not None:
                self._journal.close()
            elif database is not None:
                database.close()
            raise
        if database is not None:
            self.usage = UsageReader(database.file)
        return store

    async def _write_usage(self) -> None:
        while True:
            await asyncio.sleep(self._config.usage.flush_period)
            self.ledger.flush()

    async def _refresh(self) -> None:
        """Learn of keys that other gateways made, and forget what is over."""
        period = self._config.redis.refresh if self._config.redis is not None else 60.0
        while True:
            await asyncio.sleep(period)
            await self._refresh_now()

    async def _refresh_now(self) -> None:
        try:
            await self._store.tidy()
            await self.accounts.load()
        except HeadraceError as error:
            log.warning("Accounts could not be refreshed: %s", error)

    def _refused(self, account: Account, reason: str) -> None:
        self._metrics.add(ACCOUNT_REFUSED, (self._names.label(account.key), reason))
