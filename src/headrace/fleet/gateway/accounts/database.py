"""The accounts' directory: one SQLite file that belongs to one gateway.

accounts.db    created keys, money, what is set aside, the ledger (write-ahead log)
lock           held by the gateway that the directory belongs to
"""

import contextlib
import fcntl
import sqlite3
from pathlib import Path
from typing import Final

from headrace.core.errors import ConfigError

VERSION: Final = 1
FILE: Final = "accounts.db"
_SCHEMA: Final = """
CREATE TABLE keys (
    name TEXT PRIMARY KEY,
    record BLOB NOT NULL
);
CREATE TABLE money (
    meter TEXT PRIMARY KEY,
    spent INTEGER NOT NULL,
    resets_at REAL
);
CREATE TABLE holds (
    id TEXT PRIMARY KEY,
    record BLOB NOT NULL
);
CREATE TABLE usage (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    time REAL NOT NULL,
    request_id TEXT NOT NULL,
    key TEXT NOT NULL,
    tenant TEXT NOT NULL,
    model TEXT NOT NULL,
    replica TEXT NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cost INTEGER NOT NULL,
    ttft REAL,
    latency REAL NOT NULL,
    status INTEGER NOT NULL
);
CREATE INDEX usage_time ON usage (time);
"""


class Database:
    """The directory, locked. The connection is for one thread at a time."""

    def __init__(self, directory: str) -> None:
        """Raises ConfigError where it cannot be used, or another gateway uses it."""
        self.path: Final = Path(directory).expanduser()
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = (self.path / "lock").open("w")
            # Digests of keys, and who asked for what: nobody else's, also in a directory that others may read. SQLite gives
            # its other files the rights of this one.
            (self.path / FILE).touch(mode=0o600)
            with contextlib.suppress(PermissionError):  # another user's, who lets us write
                (self.path / FILE).chmod(0o600)
        except OSError as error:
            raise ConfigError(
                f"accounts.directory {self.path} cannot be used: {error.strerror}."
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise ConfigError(
                f"accounts.directory {self.path} is used by another gateway; several share limits by accounts.redis."
            ) from None
        try:
            self.connection: Final = self._open()
        except BaseException:
            self._lock.close()
            raise

    @property
    def file(self) -> Path:
        """For readers of their own."""
        return self.path / FILE

    def close(self) -> None:
        """Give the directory back."""
        self.connection.close()
        self._lock.close()

    def _open(self) -> sqlite3.Connection:
        try:
            db = sqlite3.connect(
                self.path / FILE, check_same_thread=False, timeout=10, isolation_level=None
            )
            db.execute("PRAGMA journal_mode = WAL")
            # Money is on the disk when its transaction ends, also if the machine loses its power.
            db.execute("PRAGMA synchronous = FULL")
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version == 0:
                db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
        except sqlite3.Error as error:
            raise ConfigError(f"The database in {self.path} cannot be used: {error}.") from None
        if version not in (0, VERSION):
            db.close()
            raise ConfigError(f"The database in {self.path} is of another version of headrace.")
        return db
