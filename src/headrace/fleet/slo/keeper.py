"""Counts of objectives and alerts over restarts: one small file, written whole or not at all, and read once."""

import logging
import threading
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from headrace.core.clock import Clock
from headrace.fleet.durable import write_durably
from headrace.fleet.slo.alerts import Alert, Alerts, AlertState, KeptAlerts
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
#: The last second that a date can have.
_LAST_SECOND: Final = 253_402_300_799

log = logging.getLogger("headrace.alerts")


class _File(Struct, frozen=True, kw_only=True):
    version: Annotated[int, Meta(ge=1, le=1)]
    written: float
    """`Clock.wall`."""
    book: KeptBook
    alerts: msgspec.Raw = msgspec.Raw(b"{}")
    """`KeptAlerts`, read apart: what is wrong with them costs no budget."""


class Keeper:
    """Of one gateway's book and alerts. Whatever is wrong with the file costs a warning, never the gateway."""

    def __init__(self, path: Path, book: SloBook, alerts: Alerts, clock: Clock) -> None:
        self._path = path
        self._book = book
        self._alerts = alerts
        self._clock = clock
        self._due = clock.monotonic() + PERIOD
        self._complaint = ""
        self._turn = threading.Lock()

    def load(self) -> Mapping[str, tuple[Alert, ...]]:
        """Go on from the file, if there is one and it is sound; the alerts that are still to be told, by webhook."""
        try:
            with self._path.open("rb") as opened:
                data = opened.read(MAX_BYTES + 1)
            if len(data) > MAX_BYTES:
                raise ValueError("it is too large")
            file = msgspec.json.decode(data, type=_File)
            elapsed = self._clock.wall() - file.written
            _check(file.book, elapsed)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            log.warning("%s is left aside, error budgets begin anew: %s", self._path, error)
            return {}
        alerts = self._alerts_of(file)
        count = self._book.restore(file.book, max(0.0, elapsed), self._clock.monotonic())
        self._alerts.restore(alerts, max(0.0, elapsed), self._clock.monotonic())
        log.info(
            "%d error budgets and %d alerts go on from %.0f s ago",
            count,
            len(alerts.firing),
            max(0.0, elapsed),
        )
        return alerts.untold

    def _alerts_of(self, file: _File) -> KeptAlerts:
        try:
            alerts = msgspec.json.decode(file.alerts, type=KeptAlerts)
            _check_alerts(alerts)
        except (ValueError, RecursionError) as error:
            log.warning("The alerts in %s are left aside and begin anew: %s", self._path, error)
            return KeptAlerts()
        return alerts

    @property
    def has_file(self) -> bool:
        """There is one, of whenever."""
        return self._path.exists()

    @property
    def is_due(self) -> bool:
        """The last write is long ago."""
        return self._clock.monotonic() >= self._due

    def encode(self, untold: Mapping[str, tuple[Alert, ...]] = MappingProxyType({})) -> bytes:
        """The file that is to be written now; `untold` alerts are on their way, by webhook."""
        now = self._clock.monotonic()
        self._due = now + PERIOD
        book = self._book.kept(now)
        kept = replace(self._alerts.kept(now), untold=dict(untold))
        alerts = msgspec.Raw(msgspec.json.encode(kept))
        file = _File(version=1, written=self._clock.wall(), book=book, alerts=alerts)
        return msgspec.json.encode(file)

    def write(self, data: bytes) -> None:
        """Put it on the disk, from any thread: a gateway that ends does not wait for the write that it broke off."""
        with self._turn:
            self._write(data)

    def _write(self, data: bytes) -> None:
        try:
            write_durably(self._path, data)
            self._complaint = ""
        except OSError as error:
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


def _check_alerts(alerts: KeptAlerts) -> None:
    """Raises ValueError for what no gateway writes."""
    firing = [each.alert for each in alerts.firing]
    if any(alert.state is not AlertState.FIRING for alert in firing):
        raise ValueError("an alert that is over fires")
    if not all(0.0 <= each.told_ago < _MOST for each in alerts.firing):
        raise ValueError("the time of an alert makes no sense")
    for alert in (*firing, *alerts.past, *chain.from_iterable(alerts.untold.values())):
        if not all(0.0 <= at <= _LAST_SECOND for at in (alert.began, alert.ended or 0.0)):
            raise ValueError("the time of an alert makes no sense")
