"""Never two controllers of one fleet at once: a lock on a file, which ends with the process that holds it."""

import fcntl
import os
from pathlib import Path
from typing import Protocol

from headrace.core.errors import ConfigError


class Lease(Protocol):
    """The right to act."""

    def holds(self) -> bool:
        """It is ours, or has become ours just now."""
        ...

    def release(self) -> None:
        """Another one may have it."""
        ...


class FileLease:
    """`flock` on a file of this machine. The kernel lets go of it when the process ends, however it ends."""

    def __init__(self, file: Path) -> None:
        """Raises ConfigError for a directory that cannot be written."""
        self._file = file
        self._descriptor: int | None = None
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigError(f"{file.parent} cannot be made: {error.strerror}.") from None

    def holds(self) -> bool:
        """Part of Lease. Does not wait."""
        if self._descriptor is not None:
            return True
        try:
            # Not inherited: a replica that is started must not hold it.
            descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Part of Lease."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
