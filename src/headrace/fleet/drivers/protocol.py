"""What a driver of replicas is: it lists, starts, stops and describes. It decides nothing."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from headrace.config.fleet.pools import PoolConfig
from headrace.config.fleet.replicas import ReplicaSpec


class InstanceState(StrEnum):
    """Where an instance is in its life, as its driver sees it; whether it serves is for probes to say."""

    PENDING = "pending"
    """Asked for, and no address yet."""
    PRESTARTED = "prestarted"
    """The process runs and has no model; one loads by message."""
    RUNNING = "running"
    """It has an address; it loads, serves, drains or is parked."""
    STOPPING = "stopping"
    FAILED = "failed"
    """It ended by itself; `reason` says how."""


class Instance(Struct, frozen=True, kw_only=True):
    """One replica as its driver knows it."""

    id: str
    """Unique in the fleet, for ever: never given again."""
    pool: str
    version: str
    """The pool's version when it was started."""
    revision: str
    """A digest of everything that it was started with; another than the pool's means: to be replaced. Empty: its place
    replaces it by itself."""
    state: InstanceState
    spec: ReplicaSpec | None = None
    """How it is called; None while it has no address."""
    started: float = 0.0
    """`Clock.wall` of its start, so that it is known to a new controller too."""
    reason: str = ""
    """Why it failed, or what it waits for."""


class Driver(Protocol):
    """A place for replicas.

    Replicas outlive the controller: what `list` tells comes from the place itself (processes, actors, pods), not from
    memory, so that a new controller adopts what the last one started. Every call may be repeated without harm, and
    ends within a bound of its own. A place that cannot be asked raises DriverError, and nothing is concluded from it.
    """

    async def list(self) -> Sequence[Instance]:
        """All instances of this fleet at this place, failed ones too until `stop` clears them away."""
        ...

    async def start(self, pool: PoolConfig, *, prestarted: bool = False) -> Instance:
        """Start one more, at once PENDING or RUNNING. `prestarted`: to be warm, parked or without a model, where the place
        can do that.
        """
        ...

    async def stop(self, instance_id: str, *, grace: float) -> None:
        """Tell it to end and return: it finishes what it has within `grace` seconds, then it is killed. Until it is gone
        it is listed as STOPPING; a failed one is cleared away. Unknown ids are fine.
        """
        ...

    async def describe(self, instance_id: str) -> Mapping[str, str] | None:
        """Facts for an operator: pid, node, command, last lines of its log. None: there is none."""
        ...

    async def close(self) -> None:
        """Let go of connections; replicas run on."""
        ...
