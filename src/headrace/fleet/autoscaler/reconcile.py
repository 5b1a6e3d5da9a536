"""From what there is and what should be to what is to be done. Pure, and safe to repeat: each action shows in what there
is the next time, or is asked for again.

Nothing serves one moment and is stopped the next: an instance that served is drained first, and stopped when it has
nothing left, or has had its time.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from headrace.config.fleet.pools import PoolConfig
from headrace.config.fleet.scaling import AutoscalerConfig
from headrace.fleet.autoscaler.actions import Action, Drain, Park, Start, Stop, Undrain, Wake
from headrace.fleet.autoscaler.backoff import Backoff
from headrace.fleet.autoscaler.members import Member, Phase

#: Seconds that a process may take to end that has nothing left to do.
END_GRACE = 10.0
#: Seconds for which an instance drains at least: a request may have been given to it that it has not got yet.
MIN_DRAIN = 1.0
_ORDER = (Phase.STARTING, Phase.UNREADY, Phase.READY)
_WARM = (Phase.WARM, Phase.WARMING)


class Wanted(Struct, frozen=True, kw_only=True):
    """What one pool should be."""

    pool: PoolConfig
    revision: str
    """Of `pool` as it is configured: warm ones are of it."""
    counts: Mapping[str, int]
    """Active replicas by revision; others: none."""
    configs: Mapping[str, PoolConfig]
    """What each revision is started with; one that is not here is not started."""
    num_warm: int = 0
    backoff: Backoff = Backoff()
    warm_backoff: Backoff = Backoff()
    draining: frozenset[str] = frozenset()
    """Those that this autoscaler has told to drain; others drain by an operator's word and are left alone."""


def reconcile(
    wanted: Wanted, members: Sequence[Member], config: AutoscalerConfig, now: float
) -> list[Action]:
    """`members` are those of this pool. `now` is `Clock.monotonic`."""
    actions: list[Action] = [*_cleared(wanted, members, config, now)]
    gone = {action.instance_id for action in actions if isinstance(action, Stop)}
    kept = [member for member in members if member.id not in gone]
    starts: list[Start] = []
    woken: set[str] = set()
    revisions = {m.instance.revision for m in kept if m.is_active} | set(wanted.counts)
    for revision in sorted(revisions):
        own = [member for member in kept if member.instance.revision == revision]
        count = wanted.counts.get(revision, 0)
        missing = count - sum(member.is_active for member in own)
        if missing < 0:
            actions += _removed(own, -missing)
        elif missing > 0:
            ready_made = _brought_back(wanted, own, missing, now)
            woken |= {action.instance_id for action in ready_made if isinstance(action, Wake)}
            actions += ready_made
            if (pool := wanted.configs.get(revision)) is not None:
                starts += [Start(pool=pool)] * (missing - len(ready_made))
    num_starting = sum(member.phase is Phase.STARTING for member in kept)
    actions += starts[: wanted.backoff.allowed(len(starts), num_starting, now)]
    return [*actions, *_warmed(wanted, kept, woken, now)]


def has_drained(member: Member, now: float) -> bool:
    """It drains, and has nothing left."""
    return not member.facts.num_requests and now - member.since >= MIN_DRAIN


def _cleared(
    wanted: Wanted, members: Sequence[Member], config: AutoscalerConfig, now: float
) -> Iterator[Stop]:
    """What has failed, what takes too long, what has drained."""
    num_parking = wanted.num_warm - sum(m.phase in _WARM for m in members)
    for member in members:
        age = now - member.since
        if member.phase is Phase.FAILED:
            yield Stop(
                instance_id=member.id, grace=0.0, reason=f"it failed: {member.instance.reason}"
            )
        elif member.phase in (Phase.STARTING, Phase.WARMING) and age > config.start_timeout:
            reason = f"it was not ready within {config.start_timeout:.0f} s"
            yield Stop(instance_id=member.id, grace=0.0, reason=reason)
        elif member.phase is Phase.UNREADY and age > config.unready_timeout:
            reason = f"it has not been ready for {age:.0f} s"
            yield Stop(instance_id=member.id, grace=END_GRACE, reason=reason)
        elif member.phase is Phase.DRAINING and member.id in wanted.draining:
            is_idle = has_drained(member, now)
            may_park = num_parking > 0 and member.instance.revision == wanted.revision
            if is_idle and may_park:
                num_parking -= 1  # `_warmed` parks it
            elif is_idle:
                yield Stop(instance_id=member.id, grace=END_GRACE, reason="it has drained")
            elif age > config.drain_timeout:
                reason = f"its requests took longer than {config.drain_timeout:.0f} s"
                yield Stop(instance_id=member.id, grace=END_GRACE, reason=reason)


def _removed(own: Sequence[Member], count: int) -> Iterator[Action]:
    """Those that serve least go first: what has not served yet at once, what has by draining."""
    active = [member for member in own if member.is_active]
    active.sort(
        key=lambda m: (_ORDER.index(m.phase), m.facts.num_requests, -m.instance.started, m.id)
    )
    for member in active[:count]:
        if member.phase is Phase.STARTING:
            yield Stop(instance_id=member.id, grace=0.0, reason="it is not needed any more")
        else:
            yield Drain(instance_id=member.id, reason="fewer are needed")


def _brought_back(
    wanted: Wanted, own: Sequence[Member], count: int, now: float
) -> list[Undrain | Wake]:
    """What is there already: replicas that still drain, then warm ones; but none while those before did not wake."""
    draining = [m for m in own if m.phase is Phase.DRAINING and m.id in wanted.draining]
    draining.sort(key=lambda member: (-member.facts.num_requests, member.id))
    warm = sorted(
        (m for m in own if m.phase is Phase.WARM), key=lambda m: (m.instance.started, m.id)
    )
    if now < wanted.warm_backoff.until:
        warm = []
    found: list[Undrain | Wake] = [Undrain(instance_id=member.id) for member in draining]
    return (found + [Wake(instance_id=member.id) for member in warm])[:count]


def _warmed(
    wanted: Wanted, kept: Sequence[Member], woken: set[str], now: float
) -> Iterator[Action]:
    """Fills the warm pool: with what has drained, else with new ones; sends away what is too much."""
    warm = [member for member in kept if member.phase in _WARM and member.id not in woken]
    warm.sort(key=lambda member: (_WARM.index(member.phase), member.instance.started, member.id))
    stale = [member for member in warm if member.instance.revision != wanted.revision]
    fresh = [member for member in warm if member.instance.revision == wanted.revision]
    for member in stale:
        yield Stop(instance_id=member.id, grace=END_GRACE, reason="it is out of date")
    for member in fresh[wanted.num_warm :]:
        yield Stop(instance_id=member.id, grace=END_GRACE, reason="more are warm than are wanted")
    missing = wanted.num_warm - len(fresh)
    for member in kept:
        is_drained = member.phase is Phase.DRAINING and has_drained(member, now)
        if missing <= 0:
            return
        if (
            is_drained
            and member.id in wanted.draining
            and member.instance.revision == wanted.revision
        ):
            missing -= 1
            yield Park(instance_id=member.id)
    if missing > 0 and wanted.revision in wanted.configs:
        num_warming = sum(member.phase is Phase.WARMING for member in kept)
        for _ in range(wanted.warm_backoff.allowed(missing, num_warming, now)):
            yield Start(pool=wanted.pool, prestarted=True)
