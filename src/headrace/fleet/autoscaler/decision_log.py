"""What was decided and why: the last decisions in memory, and all of them on disk where that is wanted.

A decision that is the same as the last one of its pool is not kept again: what is kept tells of changes.
"""

import logging
from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

import msgspec
from msgspec import Struct

from headrace.config.fleet.scaling import DecisionLogConfig
from headrace.fleet.autoscaler.values import Decision

log = logging.getLogger("headrace.fleet")


class EntryKind(StrEnum):
    """What an entry tells of."""

    DECISION = "decision"
    """What a pool should be."""
    ACTION = "action"
    """What was done to an instance."""
    FAULT = "fault"
    """What went wrong: a driver, a start, a rollout that was given up."""


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line."""

    number: int
    """Counts up; gaps were never there."""
    at: float
    """`Clock.wall`."""
    kind: EntryKind
    pool: str
    text: str
    """For people: one sentence."""
    current: int | None = None
    desired: int | None = None
    policy: str = ""
    limited_by: str = ""
    is_advisory: bool = False
    instance: str = ""


class DecisionLog:
    """Bounded in memory; on disk two files of a bounded size."""

    def __init__(self, config: DecisionLogConfig) -> None:
        self._config = config
        self._entries: deque[Entry] = deque(maxlen=config.kept)
        self._last: dict[str, Decision] = {}
        self._unwritten: deque[Entry] = deque(maxlen=config.kept)
        self._number = 0
        self._complaint = ""

    def decided(self, decision: Decision) -> bool:
        """Whether it tells anything new."""
        old = self._last.get(decision.pool)
        self._last[decision.pool] = decision
        if old is not None and _same(old, decision):
            return False
        self._add(
            at=decision.at,
            kind=EntryKind.DECISION,
            pool=decision.pool,
            text=decision.reason,
            current=decision.current,
            desired=decision.desired,
            policy=decision.policy,
            limited_by=decision.limited_by,
            is_advisory=decision.is_advisory,
        )
        return True

    def acted(self, at: float, pool: str, instance: str, text: str) -> None:
        """Something was done."""
        self._add(at=at, kind=EntryKind.ACTION, pool=pool, instance=instance, text=text)

    def failed(self, at: float, pool: str, text: str, instance: str = "") -> None:
        """Something went wrong. The same words in a row are kept once."""
        last = next((e for e in reversed(self._entries) if e.pool == pool), None)
        if last is None or (last.kind, last.text) != (EntryKind.FAULT, text):
            self._add(at=at, kind=EntryKind.FAULT, pool=pool, instance=instance, text=text)

    def last(self, count: int, *, pool: str | None = None, after: int = 0) -> Sequence[Entry]:
        """The newest `count`, oldest first; of one pool, and with numbers above `after`."""
        found: list[Entry] = []
        for entry in reversed(self._entries):
            if len(found) >= count or entry.number <= after:
                break
            if pool is None or entry.pool == pool:
                found.append(entry)
        return found[::-1]

    def latest(self) -> dict[str, Decision]:
        """The last decision of each pool."""
        return dict(self._last)

    def keep(self, pools: set[str]) -> None:
        """Pools that are gone decide no more."""
        self._last = {name: last for name, last in self._last.items() if name in pools}

    def flush(self) -> None:
        """Write what was not written; in a thread. A disk that fails costs lines of the file, and nothing else."""
        if self._config.file is None or not self._unwritten:
            return
        lines = []
        while self._unwritten:
            lines.append(msgspec.json.encode(self._unwritten.popleft()) + b"\n")
        file = Path(self._config.file).expanduser()
        try:
            _append(file, b"".join(lines), self._config.max_bytes)
            self._complaint = ""
        except OSError as error:
            words = f"Decisions cannot be written to {file}: {error.strerror}."
            if words != self._complaint:
                self._complaint = words
                log.error(words)

    def _add(self, *, at: float, kind: EntryKind, pool: str, text: str, **more: object) -> None:
        self._number += 1
        entry = msgspec.convert(
            {"number": self._number, "at": at, "kind": kind, "pool": pool, "text": text, **more},
            Entry,
        )
        self._entries.append(entry)
        if self._config.file is not None:
            self._unwritten.append(entry)


def _same(old: Decision, new: Decision) -> bool:
    """It says the same again, though with other figures."""
    names = ("current", "desired", "policy", "limited_by", "is_advisory")
    return all(getattr(old, name) == getattr(new, name) for name in names)


def _append(file: Path, data: bytes, max_bytes: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.exists() and file.stat().st_size + len(data) > max_bytes:
        file.replace(file.with_name(f"{file.name}.1"))
    with file.open("ab") as opened:
        opened.write(data)
