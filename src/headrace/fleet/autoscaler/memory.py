"""What a new controller must know that lists do not show: an operator's words, ways back, what was measured."""

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from headrace.config.fleet.pools import PoolConfig
from headrace.fleet.autoscaler.cold_starts import StartKind
from headrace.fleet.autoscaler.planner import Planner
from headrace.fleet.autoscaler.rollout import Rollout

log = logging.getLogger("headrace.fleet")
MAX_BYTES = 4 * 1024 * 1024


class Memory(Struct, frozen=True, kw_only=True):
    """The file's content."""

    overrides: Mapping[str, int] = {}
    rollouts: Mapping[str, Rollout] = {}
    known: Mapping[str, Mapping[str, PoolConfig]] = {}
    """What revisions were started with, by pool and revision."""
    cold_starts: Mapping[str, Mapping[StartKind, float]] = {}
    """Seconds, by pool and kind."""
    capacities: Mapping[str, float] = {}
    """Tokens a second of one replica, by the first pool of a group."""


def recall(file: Path) -> Memory:
    """What the file says; nothing where there is none, or where it cannot be read: it is not worth a failed start."""
    try:
        content = file.read_bytes()[: MAX_BYTES + 1]
        if len(content) > MAX_BYTES:
            raise ValueError("it is too long")
        return msgspec.json.decode(content, type=Memory)
    except FileNotFoundError:
        return Memory()
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        log.warning("%s cannot be read, and is begun anew: %s", file, error)
        return Memory()


def write(file: Path, content: bytes) -> None:
    """In the place of what was there, or not at all. Raises OSError."""
    new = file.with_name(f"{file.name}.new")
    new.write_bytes(content)
    new.replace(file)


def restore(planner: Planner, memory: Memory) -> None:
    """Tell a planner that has its configuration already. Pools that are not there any more are left out."""
    for pool, count in memory.overrides.items():
        if pool in planner.pools:
            planner.overrides[pool] = min(max(0, count), planner.pools[pool].max_replicas)
    planner.revisions.recall(memory.known, memory.rollouts)
    for pool, means in memory.cold_starts.items():
        if pool in planner.pools:
            planner.cold_starts.recall(pool, means)


def of(planner: Planner, capacities: Mapping[str, float]) -> Memory:
    """What is to be kept of it."""
    return Memory(
        overrides=dict(planner.overrides),
        rollouts=dict(planner.revisions.rollouts),
        known={pool: dict(kept) for pool, kept in planner.revisions.known.items()},
        cold_starts=planner.cold_starts.means(),
        capacities=dict(capacities),
    )
