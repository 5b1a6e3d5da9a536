"""Counts of objectives over restarts: one small file, written whole or not at all, and read once."""

import logging
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from headrace.core.clock import Clock
from headrace.fleet.slo.book import SloBook
from headrace.fleet.slo.counts import NUM_SLOTS
from headrace.fleet.slo.values import KeptBook

#: Seconds between two writes.
PERIOD: Final = 60.0
#: Bytes that are read at most: `MAX_KEPT` budgets take less, with ten rules.
MAX_BYTES: Final = 64 * 2**20
#: Seconds by which a clock may have been turned back.
_SLACK: Final = 60.0
_MOST: Final = 2**53

log = logging.getLogger("headrace.alerts")


class _File(Struct, frozen=True, kw_only=True):
    version: Annotated[int, Meta(ge=1, le=1)]
    written: float
    """`Clock.wall`."""
    book: KeptBook


class Keeper:
    """Of one gateway's book. Whatever is wrong with the file costs a warning, never the gateway."""

    def __init__(self, path: Path, book: SloBook, clock: Clock) -> None:
        self._path = path
        self._book = book
        self._clock = clock
        self._due = clock.monotonic() + PERIOD
        self._complaint = ""
        self._turn = threading.Lock()

    def load(self) -> None:
        """Go on from the file, if there is one and it is sound."""
        try:
            with self._path.open("rb") as opened:
                data = opened.read(MAX_BYTES + 1)
            if len(data) > MAX_BYTES:
                raise ValueError("it is too large")
            file = msgspec.json.decode(data, type=_File)
            elapsed = self._clock.wall() - file.written
            _check(file.book, elapsed)
        except FileNotFoundError:
            return
        except (OSError, ValueError, RecursionError) as error:
            log.warning("%s is left aside, error budgets begin anew: %s", self._path, error)
            return
        count = self._book.restore(file.book, max(0.0, elapsed), self._clock.monotonic())
        log.info("%d error budgets go on from %.0f s ago", count, max(0.0, elapsed))

    @property
    def is_due(self) -> bool:
        """The last write is long ago."""
        return self._clock.monotonic() >= self._due

    def encode(self) -> bytes:
        """The file that is to be written now."""
        now = self._clock.monotonic()
        self._due = now + PERIOD
        book = self._book.kept(now)
        return msgspec.json.encode(_File(version=1, written=self._clock.wall(), book=book))

    def write(self, data: bytes) -> None:
        """Put it on the disk, from any thread: a gateway that ends does not wait for the write that it broke off."""
        with self._turn:
            self._write(data)

    def _write(self, data: bytes) -> None:
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with draft.open("wb") as opened:
                opened.write(data)
                opened.flush()
                os.fsync(opened.fileno())
            draft.replace(self._path)
            self._complaint = ""
        except OSError as error:
            with suppress(OSError):
                draft.unlink()
            if str(error) != self._complaint:  # once, not every minute
                self._complaint = str(error)
                log.warning("Error budgets are not kept over a restart: %s", error)


def _check(book: KeptBook, elapsed: float) -> None:
    """Raises ValueError for what no gateway writes."""
    if elapsed < -_SLACK:
        raise ValueError("it is from the future")
    if not 0.0 <= book.seen < _MOST:
        raise ValueError("its time makes no sense")
    for budget in book.budgets:
        for window in budget.windows:
            if len(window) > NUM_SLOTS + 1:
                raise ValueError("a window is too long")
            if not all(0 <= n < _MOST for pair in window for n in pair):
                raise ValueError("a count makes no sense")
