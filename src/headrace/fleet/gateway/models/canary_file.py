"""Which canaries are off, over restarts: one small file, written whole or not at all when that has changed."""

import asyncio
import logging
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from headrace.core.clock import Clock
from headrace.fleet.durable import write_durably
from headrace.fleet.gateway.models.canary import Canaries, Off

#: Bytes that are read at most.
MAX_BYTES: Final = 2**20

log = logging.getLogger("headrace.fleet")


class _Kept(Struct, frozen=True, kw_only=True):
    off: Off
    at: Annotated[float, Meta(ge=0)]
    """`Clock.wall` when it was switched off."""


class _File(Struct, frozen=True, kw_only=True):
    version: Annotated[int, Meta(ge=1, le=1)]
    canaries: tuple[_Kept, ...]


class CanaryFile:
    """Of one gateway. Whatever is wrong with the file costs a warning, never the gateway."""

    def __init__(self, path: Path, canaries: Canaries, clock: Clock) -> None:
        self._path = path
        self._canaries = canaries
        self._clock = clock
        self._written: frozenset[Off] = frozenset()
        self._complaint = ""

    def load(self) -> None:
        """Canaries that are still on the same terms are off as they were."""
        try:
            with self._path.open("rb") as opened:
                data = opened.read(MAX_BYTES + 1)
            if len(data) > MAX_BYTES:
                raise ValueError("it is too large")
            file = msgspec.json.decode(data, type=_File)
        except FileNotFoundError:
            return
        except (OSError, ValueError, RecursionError) as error:
            log.warning("%s is left aside, all canaries are tried anew: %s", self._path, error)
            return
        now, wall = self._clock.monotonic(), self._clock.wall()
        for kept in file.canaries:
            if self._canaries.restore(kept.off, now - max(0.0, wall - kept.at)):
                log.info("The canary of %s stays off: %s", kept.off.rule, kept.off.reason)
        self._written = frozenset(kept.off for kept in file.canaries)

    async def save(self) -> None:
        """Write it, if others are off than when it was written last. What could not be written is tried again."""
        now, wall = self._clock.monotonic(), self._clock.wall()
        found = self._canaries.switched_off(now)
        if found.keys() == self._written:
            return
        kept = tuple(_Kept(off=off, at=wall - (now - since)) for off, since in found.items())
        data = msgspec.json.encode(_File(version=1, canaries=kept))
        complaint = await asyncio.to_thread(self._write, data)
        if not complaint:
            self._written = frozenset(found)
        elif complaint != self._complaint:  # once, not at each try
            log.warning("Which canaries are off is not kept over a restart: %s", complaint)
        self._complaint = complaint

    def _write(self, data: bytes) -> str:
        """What is wrong with the place; empty: nothing."""
        try:
            write_durably(self._path, data)
        except OSError as error:
            return str(error)
        return ""
