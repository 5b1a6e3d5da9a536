"""Where replicas come from: drivers that list all there are. The registry is reconciled with the whole list.

A list, and never a stream of changes: what a watch has missed would be missed for ever.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from headrace.config.fleet.read import read_replicas
from headrace.config.fleet.replicas import ReplicaSpec
from headrace.core.errors import ConfigError

log = logging.getLogger("headrace.fleet")


class Discovery(Protocol):
    """One source of replicas."""

    async def list(self) -> Sequence[ReplicaSpec] | None:
        """All replicas that there are now. None: it cannot be told at the moment, and nothing changes."""
        ...


class StaticDiscovery:
    """The replicas of the configuration."""

    def __init__(self, specs: Sequence[ReplicaSpec]) -> None:
        self._specs = tuple(specs)

    async def list(self) -> Sequence[ReplicaSpec]:
        """Always the same."""
        return self._specs


class FileDiscovery:
    """A YAML file, read again when it changes. A file that is no good changes nothing."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._look: tuple[int, int, int] | None = None
        self._specs: tuple[ReplicaSpec, ...] | None = None

    async def list(self) -> Sequence[ReplicaSpec] | None:
        """What the file says, or last said."""
        try:
            found = self._file.stat()
            look = (found.st_mtime_ns, found.st_size, found.st_ino)
            if look != self._look:
                self._look = look
                self._specs = read_replicas(self._file)
        except OSError as error:
            self._complain(f"The file {self._file} cannot be read: {error.strerror}.")
        except ConfigError as error:
            self._complain(str(error))
        return self._specs

    def _complain(self, words: str) -> None:
        log.error("%s The replicas of before stay.", words)
