"""The directory of files and batches: an SQLite database, one thread that uses it, and the files' contents.

batches.db     what there is (write-ahead log: a process that is killed loses nothing it had committed)
files/ID       contents
uploads/       contents that are still arriving; emptied at the start
lock           held by the one server that the directory belongs to
"""

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

from headrace.core.errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")

VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE files (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner BLOB NOT NULL,
    purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    expires_at INTEGER,
    record BLOB NOT NULL
);
CREATE TABLE batches (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner BLOB NOT NULL,
    status TEXT NOT NULL,
    record BLOB NOT NULL,
    retention INTEGER,
    verdict TEXT,
    total INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    answer_bytes INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE lines (
    batch_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    length INTEGER NOT NULL,
    is_ok INTEGER,
    answer BLOB,
    PRIMARY KEY (batch_id, number)
) WITHOUT ROWID;
CREATE INDEX lines_open ON lines (batch_id, number) WHERE answer IS NULL;
"""


class Disk:
    """One directory. `run` is for the event loop; everything else is for the thread that it runs things on."""

    def __init__(self, directory: str) -> None:
        """Raises ConfigError where the directory cannot be used, or another server uses it."""
        self.path: Final = Path(directory).expanduser()
        try:
            for name in ("files", "uploads"):
                (self.path / name).mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = (self.path / "lock").open("w")
        except OSError as error:
            raise ConfigError(f"batch_dir {self.path} cannot be used: {error.strerror}.") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise ConfigError(f"batch_dir {self.path} is used by another server.") from None
        for left in (self.path / "uploads").iterdir():
            left.unlink()
        self.db: Final = self._open()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")

    async def run(
        self, function: Callable[Concatenate["Disk", P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """The result of a function of this disk; one transaction, undone if it raises."""

        def transact() -> T:
            with self.db:
                return function(self, *args, **kwargs)

        # A caller that is cancelled leaves; what it asked for is done all the same.
        return await asyncio.wrap_future(self._thread.submit(transact))

    def close(self) -> None:
        """Wait for what runs, and give the directory back."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self.db.close()
        self._lock.close()

    def content(self, file_id: str) -> Path:
        """Where a file's content is."""
        return self.path / "files" / file_id

    def upload(self, file_id: str) -> Path:
        """Where it arrives."""
        return self.path / "uploads" / file_id

    def publish(self, file_id: str) -> int:
        """What has arrived is complete: on the disk, and in its place. Its size."""
        arrived = self.upload(file_id)
        with arrived.open("rb") as opened:
            os.fsync(opened.fileno())
            size = os.fstat(opened.fileno()).st_size
        arrived.replace(self.content(file_id))
        return size

    def _open(self) -> sqlite3.Connection:
        try:
            db = sqlite3.connect(self.path / "batches.db", check_same_thread=False, timeout=10)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version == 0:
                db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
        except sqlite3.Error as error:
            self._lock.close()
            raise ConfigError(f"The database in {self.path} cannot be used: {error}.") from None
        if version not in (0, VERSION):
            db.close()
            self._lock.close()
            raise ConfigError(f"The database in {self.path} is of another version of headrace.")
        return db
