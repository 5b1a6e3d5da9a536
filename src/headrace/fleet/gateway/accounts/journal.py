"""Writes behind: one thread, and as many statements in one transaction as have come since the last one.

Statements are written in the order in which they were given, all of them or none of a group. A group that fails (the
disk is full) is tried again until it succeeds; nothing is dropped, but for a statement with a value that no database
can take: it would keep all others from being written.
"""

import contextlib
import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from headrace.fleet.gateway.accounts.database import Database

#: Statements in one transaction.
MAX_GROUP: Final = 2_000
#: Statements that wait, from which on nothing more should be promised.
MAX_BACKLOG: Final = 100_000
#: Seconds before a group that failed is tried again.
RETRY_PERIOD: Final = 0.5

#: Faults of the values, which no second try mends.
_UNFIT: Final = (OverflowError, UnicodeError, sqlite3.DataError, sqlite3.IntegrityError)

Statement = tuple[str, tuple[Any, ...]]

log = logging.getLogger("headrace.fleet")


class Journal:
    """The only writer of a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._pending: deque[Statement] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._num_taken = 0
        """Statements of the group that is being written."""
        self._thread = threading.Thread(target=self._run, name="accounts-journal", daemon=True)
        self._thread.start()

    def put(self, *statements: Statement) -> None:
        """Have them written soon, together. Never waits."""
        with self._changed:
            self._pending.extend(statements)
            self._changed.notify()

    @property
    def backlog(self) -> int:
        """Statements that are not on the disk."""
        return len(self._pending) + self._num_taken

    @property
    def is_behind(self) -> bool:
        """The disk does not keep up: nothing more should be promised."""
        return self.backlog >= MAX_BACKLOG

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until all that was put is on the disk; whether it came to that. Not for the event loop."""
        with self._changed:
            return self._changed.wait_for(lambda: self.backlog == 0, timeout)

    def close(self, timeout: float = 10.0) -> None:
        """Write what waits, end, and give the database back."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(timeout)
        self._database.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._pending) or self._is_closing)
                if not self._pending:
                    return
                group = [self._pending.popleft() for _ in range(min(len(self._pending), MAX_GROUP))]
                self._num_taken = len(group)
            while not self._write(group):
                with self._changed:
                    # Closing must end: what cannot be written now cannot be written later either.
                    if self._changed.wait_for(lambda: self._is_closing, RETRY_PERIOD):
                        log.error("%d statements of the accounts were not written.", self.backlog)
                        return
            with self._changed:
                self._num_taken = 0
                self._changed.notify_all()

    def _write(self, group: Iterable[Statement]) -> bool:
        """Whether it is on the disk."""
        db = self._database.connection
        try:
            db.execute("BEGIN")
            for text, values in group:
                try:
                    db.execute(text, values)
                except _UNFIT as error:
                    # The text alone: it names no values.
                    log.error("A statement of the accounts is dropped: %s: %s", error, text)
            db.execute("COMMIT")
        except sqlite3.Error as error:
            log.error("Accounts could not be written, and are tried again: %s", error)
            with contextlib.suppress(sqlite3.Error):
                if db.in_transaction:
                    db.execute("ROLLBACK")
            return False
        return True
