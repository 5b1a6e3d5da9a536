"""One controller for each fleet: who holds the lock of its directory. The kernel lets go of it when the holder ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from headrace.core.errors import ConfigError
from headrace.fleet.drivers.local.process import Stat, stat_of
from headrace.fleet.drivers.local.record import own_directory

_NAME: Final = "controller"
_MAX_BYTES: Final = 100


@contextmanager
def lease(directory: Path) -> Iterator[None]:
    """Be the controller inside the block. Raises ConfigError if another process is, DriverError for a bad directory."""
    own_directory(directory)
    fd = os.open(directory / _NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if not _take(fd):
            holder = _read(fd)
            by = f"process {holder.pid}" if holder is not None else "another process"
            raise ConfigError(f"The fleet is up already, by {by}; `headrace down` ends it.")
        own = stat_of(os.getpid())
        start = own.start if own is not None else 0
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()} {start}".encode(), 0)
        yield
    finally:
        os.close(fd)


def holder_of(directory: Path) -> Stat | None:
    """The process that is the controller now. None: there is none."""
    try:
        fd = os.open(directory / _NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return None if _take(fd) else _read(fd)
    finally:
        os.close(fd)


def _take(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(fd: int) -> Stat | None:
    """Whom the file names, if that process is the one that wrote it."""
    words = os.pread(fd, _MAX_BYTES, 0).split()
    if len(words) != 2 or not all(word.isdigit() for word in words):
        return None
    found = stat_of(int(words[0]))
    return found if found is not None and found.start == int(words[1]) and found.is_alive else None
