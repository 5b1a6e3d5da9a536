"""The embedded store: one SQLite database, used by one thread, so that the event loop never waits for it.

Several processes may use one file: the sums stand in the database and are kept by triggers. A file that SQLite finds
damaged, or of another version, is emptied: it is a cache.
"""

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.fleet.cache.fuse import Fuse
from headrace.fleet.cache.store import StoreError

T = TypeVar("T")

VERSION: Final = 1
#: Entries that one put removes at most, beyond its own needs: expired ones.
_SWEEP: Final = 64
#: A last use is noted again only after so many seconds: a hit seldom writes.
_USE_GRAIN: Final = 30.0
#: Operations that may wait for the thread; more are refused.
_MAX_WAITING: Final = 1024
#: Seconds that a look-up, or a look at the size, may take, on a disk that hangs too; then it is a miss, or not known.
_PATIENCE: Final = 2.0
#: What an entry costs beside its value.
_OVERHEAD: Final = 128
_SCHEMA: Final = """
CREATE TABLE answers (
    key BLOB PRIMARY KEY, value BLOB NOT NULL, bytes INTEGER NOT NULL, expires REAL NOT NULL, used REAL NOT NULL
);
CREATE INDEX answers_used ON answers (used);
CREATE INDEX answers_expires ON answers (expires);
CREATE TABLE sums (entries INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT INTO sums VALUES (0, 0);
CREATE TRIGGER answers_in AFTER INSERT ON answers BEGIN
    UPDATE sums SET entries = entries + 1, bytes = bytes + new.bytes;
END;
CREATE TRIGGER answers_out AFTER DELETE ON answers BEGIN
    UPDATE sums SET entries = entries - 1, bytes = bytes - old.bytes;
END;
"""


class SqliteStore:
    """`path` None: in memory. Times are `clock.wall`, for they outlive the process."""

    def __init__(self, path: str | None, *, max_bytes: int, max_entries: int, clock: Clock) -> None:
        """Raises ConfigError where the file cannot be used."""
        self._path = None if path is None else Path(path).expanduser()
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._clock = clock
        self.evictions = 0
        self._waiting = 0
        self._fuse = Fuse(clock)
        self._db = self._open()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="answers")

    async def get(self, key: bytes) -> bytes | None:
        return await self._soon(lambda: self._get(key))

    async def put(self, key: bytes, value: bytes, ttl: float) -> None:
        await self._run(lambda: self._put(key, value, ttl))

    async def forget(self, key: bytes | None = None) -> None:
        await self._run(lambda: self._forget(key))

    async def size(self) -> tuple[int, int] | None:
        return await self._soon(self._sums)

    async def close(self) -> None:
        """Waits for what runs; what waits is dropped."""
        await asyncio.to_thread(self._thread.shutdown, wait=True, cancel_futures=True)
        self._db.close()

    async def _soon(self, work: Callable[[], T]) -> T:
        """In `_PATIENCE`, or not at all."""
        if self._fuse.is_blown:
            raise StoreError("The cache's database is left alone: it is too slow.")
        try:
            async with asyncio.timeout(_PATIENCE):
                found = await self._run(work)
        except TimeoutError:
            self._fuse.failed()
            raise StoreError("The cache's database is too slow.") from None
        self._fuse.held()
        return found

    async def _run(self, work: Callable[[], T]) -> T:
        if self._waiting >= _MAX_WAITING:
            raise StoreError("The cache's database has more to do than it can.")
        self._waiting += 1
        try:
            # A caller that is cancelled leaves; what it asked for is done all the same.
            return await asyncio.wrap_future(self._thread.submit(self._transact, work))
        except RuntimeError:
            raise StoreError("The cache's database is closed.") from None
        finally:
            self._waiting -= 1

    def _transact(self, work: Callable[[], T]) -> T:
        try:
            with self._db:
                return work()
        except sqlite3.Error as error:
            raise StoreError(f"The cache's database failed: {error}.") from None

    def _get(self, key: bytes) -> bytes | None:
        now = self._clock.wall()
        row = self._db.execute(
            "SELECT value, used FROM answers WHERE key = ? AND expires > ?", (key, now)
        ).fetchone()
        if row is None:
            return None
        value, used = row
        if now - used > _USE_GRAIN:
            self._db.execute("UPDATE answers SET used = ? WHERE key = ?", (now, key))
        return bytes(value)

    def _put(self, key: bytes, value: bytes, ttl: float) -> None:
        now = self._clock.wall()
        size = len(value) + _OVERHEAD
        if size > self._max_bytes:
            return
        # A trigger does not see what REPLACE removes.
        self._db.execute("DELETE FROM answers WHERE key = ?", (key,))
        self._db.execute(
            "DELETE FROM answers WHERE key IN (SELECT key FROM answers WHERE expires <= ? LIMIT ?)",
            (now, _SWEEP),
        )
        self._make_room(size)
        self._db.execute(
            "INSERT INTO answers VALUES (?, ?, ?, ?, ?)", (key, value, size, now + ttl, now)
        )

    def _make_room(self, size: int) -> None:
        entries, total = self._sums()
        while entries + 1 > self._max_entries or total + size > self._max_bytes:
            self._db.execute(
                "DELETE FROM answers WHERE key IN (SELECT key FROM answers ORDER BY used LIMIT ?)",
                (max(1, min(_SWEEP, entries // 16)),),
            )
            left, total = self._sums()
            self.evictions += entries - left
            if left == entries:
                return
            entries = left

    def _forget(self, key: bytes | None) -> None:
        if key is None:
            self._db.execute("DELETE FROM answers")
            self._db.execute("UPDATE sums SET entries = 0, bytes = 0")
        else:
            self._db.execute("DELETE FROM answers WHERE key = ?", (key,))

    def _sums(self) -> tuple[int, int]:
        entries, total = self._db.execute("SELECT entries, bytes FROM sums").fetchone()
        return int(entries), int(total)

    def _open(self) -> sqlite3.Connection:
        try:
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                return _opened(self._path)
            except sqlite3.DatabaseError:
                if self._path is None or not _is_ours(self._path):
                    raise
                _remove(self._path)
                return _opened(self._path)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"The cache's file {self._path} cannot be used: {error}.") from None


def _opened(path: Path | None) -> sqlite3.Connection:
    db = sqlite3.connect(path or ":memory:", check_same_thread=False, timeout=1.0)
    try:
        if path is not None:
            # Answers are other people's conversations.
            os.chmod(path, 0o600)  # noqa: PTH101
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version not in (0, VERSION):
            raise sqlite3.DatabaseError("it is of another version of headrace")
        if version == 0:
            db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
        db.execute("SELECT entries, bytes FROM sums").fetchone()
    except BaseException:
        db.close()
        raise
    return db


def _is_ours(path: Path) -> bool:
    """SQLite's, or garbage in place of it: but never a file that someone else uses for something."""
    with path.open("rb") as opened:
        head = opened.read(16)
    return head == b"SQLite format 3\0" or not head.strip(b"\0")


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).unlink()
