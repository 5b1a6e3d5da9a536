"""The embedded store: one SQLite database, used by one thread, so that the event loop never waits for it.

Several processes may use one file: the sums stand in the database and are kept by triggers. A file that SQLite finds
damaged, whenever it does, or that is of another version, is begun anew: it is a cache.

The bound of bytes is that of the file: of its pages in use, which may be twice what lies in them. Pages that are free
beyond it are given back.
"""

import asyncio
import contextlib
import logging
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

log = logging.getLogger("headrace.cache")

VERSION: Final = 2
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
#: Bytes of an empty file, which are not counted.
_BASE: Final = 64 * 1024
#: Pages that one put gives back at most.
_GIVEN_BACK: Final = 256
#: Bytes of its log that stay when all of that stands in the file.
_LOG: Final = 4 * 1024 * 1024
#: SQLite's codes for a file that is damaged, and for one that is none of its own.
_DAMAGED: Final = (11, 26)
_SCHEMA: Final = (
    "CREATE TABLE answers (key BLOB PRIMARY KEY, value BLOB NOT NULL, bytes INTEGER NOT NULL, "
    "expires REAL NOT NULL, used REAL NOT NULL)",
    "CREATE INDEX answers_used ON answers (used)",
    "CREATE INDEX answers_expires ON answers (expires)",
    "CREATE TABLE sums (entries INTEGER NOT NULL, bytes INTEGER NOT NULL)",
    "INSERT INTO sums VALUES (0, 0)",
    "CREATE TRIGGER answers_in AFTER INSERT ON answers BEGIN "
    "UPDATE sums SET entries = entries + 1, bytes = bytes + new.bytes; END",
    "CREATE TRIGGER answers_out AFTER DELETE ON answers BEGIN "
    "UPDATE sums SET entries = entries - 1, bytes = bytes - old.bytes; END",
)

Work = Callable[[sqlite3.Connection], T]


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
        self._db: sqlite3.Connection | None = self._open()
        self._file = _file_at(self._path)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="answers")

    async def get(self, key: bytes) -> bytes | None:
        return await self._soon(lambda db: self._get(db, key))

    async def put(self, key: bytes, value: bytes, ttl: float) -> None:
        await self._run(lambda db: self._put(db, key, value, ttl))

    async def forget(self, key: bytes | None = None) -> None:
        """All: the file holds nothing of it any more."""
        await self._run(lambda db: _forget(db, key))

    async def size(self) -> tuple[int, int] | None:
        return await self._soon(_sums)

    async def close(self) -> None:
        """Waits for what runs; what waits is dropped."""
        await asyncio.to_thread(self._thread.shutdown, wait=True, cancel_futures=True)
        if self._db is not None:
            self._db.close()

    async def _soon(self, work: Work[T]) -> T:
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

    async def _run(self, work: Work[T]) -> T:
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

    def _transact(self, work: Work[T]) -> T:
        try:
            if self._db is None:
                self._db = _opened(self._path)
                self._file = _file_at(self._path)
            with self._db:
                return work(self._db)
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
                self._begin_anew()
            raise StoreError(f"The cache's database failed: {error}.") from None
        except OSError as error:
            raise StoreError(f"The cache's file cannot be used: {error}.") from None

    def _begin_anew(self) -> None:
        """The file is damaged: none of it can be relied on. The next call makes another."""
        log.warning("The cache's file %s is damaged, and begun anew", self._path)
        db, self._db = self._db, None
        if db is not None:
            db.close()
        # Another process may have been quicker: its new file is well.
        if self._path is not None and (db is None or self._file == _file_at(self._path)):
            _remove(self._path)

    def _get(self, db: sqlite3.Connection, key: bytes) -> bytes | None:
        now = self._clock.wall()
        row = db.execute(
            "SELECT value, used FROM answers WHERE key = ? AND expires > ?", (key, now)
        ).fetchone()
        if row is None:
            return None
        value, used = row
        if now - used > _USE_GRAIN:
            db.execute("UPDATE answers SET used = ? WHERE key = ?", (now, key))
        return bytes(value)

    def _put(self, db: sqlite3.Connection, key: bytes, value: bytes, ttl: float) -> None:
        now = self._clock.wall()
        size = len(value) + _OVERHEAD
        if size > self._max_bytes:
            return
        # A trigger does not see what REPLACE removes.
        db.execute("DELETE FROM answers WHERE key = ?", (key,))
        db.execute(
            "DELETE FROM answers WHERE key IN (SELECT key FROM answers WHERE expires <= ? LIMIT ?)",
            (now, _SWEEP),
        )
        self._make_room(db, size)
        db.execute("INSERT INTO answers VALUES (?, ?, ?, ?, ?)", (key, value, size, now + ttl, now))
        if _page_bytes(db, is_free_too=True) > self._max_bytes + _BASE:
            _give_back(db, _GIVEN_BACK)

    def _make_room(self, db: sqlite3.Connection, size: int) -> None:
        entries, total = _sums(db)
        while entries + 1 > self._max_entries or self._is_full(db, total, size):
            db.execute(
                "DELETE FROM answers WHERE key IN (SELECT key FROM answers ORDER BY used LIMIT ?)",
                (max(1, min(_SWEEP, entries // 16)),),
            )
            left, total = _sums(db)
            self.evictions += entries - left
            if left == entries:
                return
            entries = left

    def _is_full(self, db: sqlite3.Connection, total: int, size: int) -> bool:
        in_use = _page_bytes(db, is_free_too=False)
        return max(total, in_use - _BASE) + size > self._max_bytes

    def _open(self) -> sqlite3.Connection:
        try:
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                return _opened(self._path)
            except sqlite3.DatabaseError as error:
                if self._path is None or _is_busy(error) or not _is_ours(self._path):
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
        # Only while there is no table yet.
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        if path is not None:
            _keep_log(db)
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute(f"PRAGMA journal_size_limit = {_LOG}")
        if _version(db) not in (0, VERSION):
            raise sqlite3.DatabaseError("it is of another version of headrace")
        if not _version(db):
            db.execute("BEGIN IMMEDIATE")
            if not _version(db):  # another process may have been quicker
                for statement in _SCHEMA:
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {VERSION}")
            db.commit()
        db.execute("SELECT entries, bytes FROM sums").fetchone()
    except BaseException:
        db.close()
        raise
    return db


def _keep_log(db: sqlite3.Connection) -> None:
    """Readers need not wait for writers from now on."""
    for _ in range(5):
        try:
            db.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if not _is_busy(error):
                raise
            # Another process does just that. Asking does not wait for it, but beginning to write does.
            db.execute("BEGIN IMMEDIATE")
            db.rollback()
        else:
            return


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _sums(db: sqlite3.Connection) -> tuple[int, int]:
    entries, total = db.execute("SELECT entries, bytes FROM sums").fetchone()
    return int(entries), int(total)


def _page_bytes(db: sqlite3.Connection, *, is_free_too: bool) -> int:
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    (free,) = db.execute("PRAGMA freelist_count").fetchone()
    (size,) = db.execute("PRAGMA page_size").fetchone()
    return int(size * (pages if is_free_too else pages - free))


def _give_back(db: sqlite3.Connection, num_pages: int) -> None:
    """Free pages, as many as there are up to `num_pages`; 0: all. Commits what was done before."""
    # Not `execute`, which has one page given back and no more.
    db.executescript(f"PRAGMA incremental_vacuum({num_pages})")


def _forget(db: sqlite3.Connection, key: bytes | None) -> None:
    if key is not None:
        db.execute("DELETE FROM answers WHERE key = ?", (key,))
        return
    db.execute("DELETE FROM answers")
    db.execute("UPDATE sums SET entries = 0, bytes = 0")
    _give_back(db, 0)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _is_busy(error: sqlite3.Error) -> bool:
    """Another process has it, or the disk fails: that is no reason to remove it."""
    # OperationalError too where a table is not what it should be.
    return (
        isinstance(error, sqlite3.OperationalError)
        and getattr(error, "sqlite_errorcode", 1) & 0xFF != 1
    )


def _is_ours(path: Path) -> bool:
    """SQLite's, or garbage in place of it: but never a file that someone else uses for something."""
    with path.open("rb") as opened:
        head = opened.read(16)
    return head == b"SQLite format 3\0" or not head.strip(b"\0")


def _file_at(path: Path | None) -> tuple[int, int] | None:
    """Which file stands there now; None: none, or none that can be looked at."""
    try:
        found = path.stat() if path is not None else None
    except OSError:
        return None
    return None if found is None else (found.st_dev, found.st_ino)


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).unlink()
