"""What a new controller must know that lists do not show: an operator's words, ways back, what was measured."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from headrace.config.fleet.pools import PoolConfig
from headrace.fleet.autoscaler import bursts
from headrace.fleet.autoscaler.cold_starts import StartKind
from headrace.fleet.autoscaler.planner import Planner
from headrace.fleet.autoscaler.rollout import Rollout

log = logging.getLogger("headrace.fleet")
MAX_BYTES = 4 * 1024 * 1024


class Memory(Struct, frozen=True, kw_only=True):
    """The file's content."""

    version: Annotated[int, Meta(ge=1, le=1)] = 1
    overrides: Mapping[str, int] = {}
    rollouts: Mapping[str, Rollout] = {}
    known: Mapping[str, Mapping[str, PoolConfig]] = {}
    """What revisions were started with, by pool and revision."""
    cold_starts: Mapping[str, Mapping[StartKind, float]] = {}
    """Seconds, by pool and kind."""
    capacities: Mapping[str, float] = {}
    """Tokens a second of one replica, by the first pool of a group."""
    bursts: msgspec.Raw = msgspec.Raw(b"{}")
    """As `bursts.kept` has them, read apart: what is wrong with them costs no operator's word."""


def recall(file: Path) -> Memory:
    """What the file says; nothing where there is none, or where it cannot be read: it is not worth a failed start."""
    try:
        content = file.read_bytes()[: MAX_BYTES + 1]
        if len(content) > MAX_BYTES:
            raise ValueError("it is too long")
        return msgspec.json.decode(content, type=Memory)
    except FileNotFoundError:
        return Memory()
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        log.warning("%s cannot be read, and is begun anew: %s", file, error)
        return Memory()


def write(file: Path, content: bytes) -> None:
    """In the place of what was there, or not at all. Raises OSError."""
    new = file.with_name(f"{file.name}.new")
    new.write_bytes(content)
    new.replace(file)


def forget_overrides(file: Path) -> list[str]:
    """The fleet was ended: sizes that operators had set end with it. The pools that had one."""
    found = recall(file)
    if found.overrides:
        try:
            write(file, msgspec.json.encode(replace(found, overrides={})))
        except OSError as error:
            log.warning("%s cannot be written: %s", file, error.strerror)
            return []
    return sorted(found.overrides)


def restore(planner: Planner, memory: Memory, *, now: float, wall: float) -> None:
    """Tell a planner that has its configuration already. Pools that are not there any more are left out."""
    try:
        planner.recall_bursts(bursts.recalled(memory.bursts, now=now, wall=wall))
    except (ValueError, RecursionError) as error:
        log.warning("What bursts took is begun anew: %s", error)
    for pool, count in memory.overrides.items():
        if pool in planner.pools:
            planner.overrides[pool] = min(max(0, count), planner.pools[pool].max_replicas)
    planner.revisions.recall(memory.known, memory.rollouts)
    for pool, means in memory.cold_starts.items():
        if pool in planner.pools:
            planner.cold_starts.recall(pool, means)


def of(planner: Planner, capacities: Mapping[str, float], *, now: float, wall: float) -> Memory:
    """What is to be kept of it."""
    return Memory(
        overrides=dict(planner.overrides),
        rollouts=dict(planner.revisions.rollouts),
        known={pool: dict(kept) for pool, kept in planner.revisions.known.items()},
        cold_starts=planner.cold_starts.means(),
        capacities=dict(capacities),
        bursts=bursts.kept(planner.bursts(), now=now, wall=wall),
    )
