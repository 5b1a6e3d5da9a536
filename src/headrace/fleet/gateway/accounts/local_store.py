"""A single gateway's store: counters in this process, SQLite behind them.

The counters are the truth while the process lives; so a request waits for no disk. What is set aside of money is
written when it is taken and when it is settled, in order. A gateway that is killed finds at its next start what was
set aside and never settled, and charges it in full (`charge_lost`): money is at most charged too much, but for
requests that began within the last commit, a few milliseconds before the end.
"""

import asyncio
import logging
import sqlite3
from typing import Final

import msgspec

from headrace.core.clock import Clock
from headrace.core.errors import ConfigError, UnavailableError
from headrace.fleet.gateway.accounts.account import StoredKey
from headrace.fleet.gateway.accounts.counters import CLOCK_DOUBT, Counters
from headrace.fleet.gateway.accounts.journal import Journal, Statement
from headrace.fleet.gateway.accounts.meters import Actual, Hold, Meter, MeterKind, Refusal
from headrace.observe.catalogue import ACCOUNT_LOST
from headrace.observe.metrics import Metrics

#: Days that spent money of past periods is kept.
KEPT_DAYS: Final = 400
_ADD: Final = (
    "INSERT INTO money (meter, spent, resets_at) VALUES (?, ?, ?) "
    "ON CONFLICT (meter) DO UPDATE SET spent = spent + excluded.spent"
)

log = logging.getLogger("headrace.fleet")


class LocalStore:
    """Implements Store. Without a journal nothing outlives the process, and keys cannot be created."""

    def __init__(self, clock: Clock, journal: Journal | None = None) -> None:
        self._clock = clock
        self._journal = journal
        self._counters = Counters()
        self._keys: dict[str, StoredKey] = {}

    @classmethod
    def opened(
        cls,
        clock: Clock,
        journal: Journal,
        db: sqlite3.Connection,
        *,
        charge_lost: bool,
        metrics: Metrics | None = None,
    ) -> "LocalStore":
        """With what is in the database, which nobody else may use meanwhile; lost holds are settled.

        Raises ConfigError for a database that cannot be read.
        """
        store = cls(clock, journal)
        now = clock.wall()
        try:
            holds = [
                msgspec.msgpack.decode(record, type=Hold)
                for (record,) in db.execute("SELECT record FROM holds")
            ]
            db.execute("BEGIN")
            for hold in holds:
                for meter in _of_money(hold) if charge_lost else ():
                    db.execute(_ADD, (meter.id, meter.amount, meter.resets_at))
            db.execute("DELETE FROM holds")
            db.execute("DELETE FROM money WHERE resets_at < ?", (now - KEPT_DAYS * 86_400,))
            db.execute("COMMIT")
            rows = db.execute(
                "SELECT meter, spent, resets_at FROM money WHERE resets_at IS NULL OR resets_at > ?",
                (now - CLOCK_DOUBT,),
            )
            store._counters = Counters({meter: (spent, end) for meter, spent, end in rows})
            found = [
                msgspec.msgpack.decode(record, type=StoredKey)
                for (record,) in db.execute("SELECT record FROM keys")
            ]
        except (sqlite3.Error, msgspec.DecodeError) as error:
            raise ConfigError(f"The accounts' database cannot be read: {error}.") from None
        store._keys = {key.name: key for key in found}
        if holds:
            (metrics or Metrics()).add(ACCOUNT_LOST, (), len(holds))
            log.warning(
                "%d requests of a gateway that ended were never settled: what was set aside for them is %s.",
                len(holds),
                "charged" if charge_lost else "given back",
            )
        return store

    async def take(self, hold: Hold) -> Refusal | None:
        """Part of Store. Does not wait."""
        if self._journal is not None and self._journal.is_behind and _of_money(hold):
            raise UnavailableError("Budgets cannot be written at the moment.", retry_after=5.0)
        refusal = self._counters.take(
            hold, monotonic=self._clock.monotonic(), wall=self._clock.wall()
        )
        if refusal is None and self._journal is not None and _of_money(hold):
            record = msgspec.msgpack.encode(hold)
            self._journal.put(("INSERT INTO holds (id, record) VALUES (?, ?)", (hold.id, record)))
        return refusal

    def settle(self, hold: Hold, actual: Actual) -> None:
        """Part of Store."""
        settled = self._counters.settle(hold.id, actual, monotonic=self._clock.monotonic())
        if settled is None or self._journal is None:
            return
        money = _of_money(settled)
        if money:
            statements: list[Statement] = [("DELETE FROM holds WHERE id = ?", (hold.id,))]
            if actual.cost:
                statements += [(_ADD, (each.id, actual.cost, each.resets_at)) for each in money]
            self._journal.put(*statements)

    async def keys(self) -> tuple[StoredKey, ...]:
        """Part of Store."""
        return tuple(self._keys.values())

    async def put_key(self, key: StoredKey, *, is_new: bool) -> bool:
        """Part of Store. It is on the disk when this returns."""
        if self._journal is None:
            raise ConfigError("Keys can only be created where accounts.directory is set.")
        if is_new and key.name in self._keys:
            return False
        self._keys[key.name] = key
        record = msgspec.msgpack.encode(key)
        self._journal.put(
            ("INSERT OR REPLACE INTO keys (name, record) VALUES (?, ?)", (key.name, record))
        )
        if not await asyncio.to_thread(self._journal.flush):
            if is_new:  # nobody will learn its text: it must not be there when the disk comes back
                self._keys.pop(key.name, None)
                self._journal.put(("DELETE FROM keys WHERE name = ?", (key.name,)))
            raise UnavailableError("The key could not be written.", retry_after=5.0)
        return True

    async def money(self, meter_ids: tuple[str, ...]) -> dict[str, tuple[int, int]]:
        """Part of Store."""
        return {
            name: (self._counters.spent(name), self._counters.set_aside(name)) for name in meter_ids
        }

    async def close(self) -> None:
        """Part of Store. The journal is closed by who made it."""
        if self._journal is not None:
            await asyncio.to_thread(self._journal.flush)

    async def start(self) -> None:
        """Part of Store."""

    async def tidy(self) -> None:
        """Part of Store: drop budgets of periods that are over."""
        self._counters.forget_periods(self._clock.wall())

    @property
    def num_holds(self) -> int:
        """Part of Store."""
        return self._counters.num_holds

    @property
    def backlog(self) -> int:
        """Part of Store: the journal's is counted by who made it."""
        return 0


def _of_money(hold: Hold) -> list[Meter]:
    return [meter for meter in hold.meters if meter.kind is MeterKind.MONEY]
