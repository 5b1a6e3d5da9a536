"""Where replicas come from: drivers that list all there are. The registry is reconciled with the whole list.

A list, and never a stream of changes: what a watch has missed would be missed for ever.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
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
        self._complaint = ""

    async def list(self) -> Sequence[ReplicaSpec] | None:
        """What the file says; None where it says the same as before, or cannot be read."""
        try:
            found = self._file.stat()
            look = (found.st_mtime_ns, found.st_size, found.st_ino)
            if look == self._look:
                return None
            # In a thread: a long file takes a while, and streams run on.
            specs = await asyncio.to_thread(read_replicas, self._file)
        except OSError as error:
            self._complain(f"The file {self._file} cannot be read: {error.strerror}.")
            return None
        except ConfigError as error:
            self._complain(str(error))
            return None
        self._look, self._complaint = look, ""
        return specs

    def _complain(self, words: str) -> None:
        """Once, not at each look."""
        if words != self._complaint:
            self._complaint = words
            log.error("%s The replicas of before stay.", words)


class Sources:
    """Several sources as one; of each, what it told last counts."""

    def __init__(self, sources: Mapping[str, Discovery]) -> None:
        """By a name that stays the same through reloads of the configuration."""
        self._sources = dict(sources)
        self._known: dict[str, tuple[ReplicaSpec, ...]] = {}

    def replace(self, sources: Mapping[str, Discovery]) -> None:
        """These from now on. Those whose name stays tell what they told until they tell something new."""
        self._sources = dict(sources)
        self._known = {name: specs for name, specs in self._known.items() if name in sources}

    async def list(self) -> Sequence[ReplicaSpec]:
        """All replicas of all sources that have told any."""
        for name, source in tuple(self._sources.items()):
            specs = await source.list()
            if specs is not None and self._sources.get(name) is source:
                self._known[name] = tuple(specs)
        return [spec for name in self._sources for spec in self._known.get(name, ())]
