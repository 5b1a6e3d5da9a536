"""Instances as the autoscaler sees them: what their driver says, and what probes and the gateway say, as one phase. Pure."""

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from headrace.core.stats import ReplicaState
from headrace.fleet.drivers.protocol import Instance, InstanceState


class Phase(StrEnum):
    """Where an instance is in its life."""

    STARTING = "starting"
    """Asked for, and it has not served yet."""
    READY = "ready"
    UNREADY = "unready"
    """It served, and does not now."""
    WARMING = "warming"
    """Asked for, to be warm."""
    WARM = "warm"
    """Parked or pre-started: it serves a moment after it is asked to."""
    DRAINING = "draining"
    """It gets nothing new."""
    STOPPING = "stopping"
    FAILED = "failed"


#: Those that count as there, or as coming.
ACTIVE = (Phase.STARTING, Phase.READY, Phase.UNREADY)
_WARM = (ReplicaState.PARKED, ReplicaState.EMPTY)


class Facts(Struct, frozen=True, kw_only=True):
    """What the gateway knows of an instance."""

    is_ready: bool = False
    ready_since: float | None = None
    """`Clock.monotonic`."""
    state: ReplicaState | None = None
    """Its own word; None: not told."""
    is_draining: bool = False
    """It gets nothing new from this gateway, by whoever's word."""
    num_requests: int = 0
    """That it has of this gateway."""
    num_sent: int = 0
    """Requests that it was ever sent, and those of them that failed through its fault."""
    num_errors: int = 0


class Member(Struct, frozen=True, kw_only=True):
    """One instance, in its phase."""

    instance: Instance
    phase: Phase
    since: float
    """`Clock.monotonic` since which it is in this phase, as far as this controller knows."""
    facts: Facts = Facts()

    @property
    def id(self) -> str:
        """Of its instance."""
        return self.instance.id

    @property
    def is_active(self) -> bool:
        """It serves, or is to serve."""
        return self.phase in ACTIVE


def observed(
    instances: Sequence[Instance],
    facts: Mapping[str, Facts],
    before: Mapping[str, Member],
    *,
    waking: Collection[str],
    warming: Collection[str],
    now: float,
) -> dict[str, Member]:
    """All instances by id. `before` is what the last look said, `waking` are those warm ones that were asked to serve,
    `warming` those that were started to be warm.
    """
    found = {}
    for instance in instances:
        old = before.get(instance.id)
        known = facts.get(instance.id, Facts())
        phase = _phase(instance, known, None if old is None else old.phase, instance.id in waking)
        if phase is Phase.STARTING and instance.id in warming:
            phase = Phase.WARMING
        since = old.since if old is not None and old.phase is phase else now
        found[instance.id] = Member(instance=instance, phase=phase, since=since, facts=known)
    return found


def seen_now(member: Member, facts: Facts | None, now: float) -> Member:
    """Between two looks of the autoscaler: one whose start is over, or that serves no more. None: the gateway has no such
    replica.
    """
    if facts is None:
        return member
    is_ready = facts.is_ready and not facts.is_draining
    if is_ready and member.phase in (Phase.STARTING, Phase.UNREADY):
        since = facts.ready_since if facts.ready_since is not None else now
        return replace(member, phase=Phase.READY, since=since, facts=facts)
    if not facts.is_ready and member.phase is Phase.READY:
        return replace(member, phase=Phase.UNREADY, since=now, facts=facts)
    return member


def _phase(instance: Instance, facts: Facts, before: Phase | None, is_waking: bool) -> Phase:
    simple = {
        InstanceState.FAILED: Phase.FAILED,
        InstanceState.STOPPING: Phase.STOPPING,
        InstanceState.PENDING: Phase.STARTING,
    }
    if instance.state in simple:
        return simple[instance.state]
    if facts.is_draining and not is_waking:
        return Phase.DRAINING
    if facts.is_ready:
        return Phase.READY
    is_warm = instance.state is InstanceState.PRESTARTED or facts.state in _WARM
    if is_warm and not is_waking:
        return Phase.WARM
    has_served = before in (Phase.READY, Phase.UNREADY) and not is_waking
    return Phase.UNREADY if has_served else Phase.STARTING
