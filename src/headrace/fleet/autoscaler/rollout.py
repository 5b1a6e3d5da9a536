"""Rolling update and rollback, as plain arithmetic over two revisions. Pure.

A rollout goes from what runs to what is configured: `surge` more than wanted are started, old ones leave one by one as
new ones are ready, and each is drained before it is stopped (`reconcile.py`). If new ones do not start, or fail more
requests than old ones, the same goes backwards, and that revision is not tried again.
"""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from headrace.config.fleet.scaling import RolloutConfig
from headrace.fleet.autoscaler.members import Member, Phase


class Rollout(Struct, frozen=True, kw_only=True):
    """Of one pool."""

    old: str
    """Revision that is replaced."""
    new: str
    """Revision that is configured."""
    is_back: bool = False
    """It was given up: the old one is wanted, and stays wanted."""
    reason: str = ""
    """Why it was given up."""
    num_failed: int = 0
    """New ones that failed before they served."""


class Tally(NamedTuple):
    """Replicas of one revision."""

    num_active: int = 0
    num_ready: int = 0
    num_sent: int = 0
    num_errors: int = 0

    @property
    def error_rate(self) -> float:
        """0..1."""
        return self.num_errors / self.num_sent if self.num_sent else 0.0


def tally(members: Sequence[Member], revision: str) -> Tally:
    """Of these members, those of the revision."""
    own = [m for m in members if m.instance.revision == revision and m.phase is not Phase.FAILED]
    return Tally(
        num_active=sum(m.is_active for m in own),
        num_ready=sum(m.phase is Phase.READY for m in own),
        num_sent=sum(m.facts.num_sent for m in own),
        num_errors=sum(m.facts.num_errors for m in own),
    )


def begun(rollout: Rollout | None, members: Sequence[Member], current: str) -> Rollout | None:
    """The rollout there is, or one that begins because others than the current revision run; None: all is as configured."""
    if rollout is not None and rollout.new == current:
        return rollout
    others = [
        m.instance.revision for m in members if m.is_active and m.instance.revision != current
    ]
    if not others:
        return None
    return Rollout(old=max(sorted(set(others)), key=others.count), new=current)


def with_failure(rollout: Rollout) -> Rollout:
    """One more of the new ones has failed."""
    return replace(rollout, num_failed=rollout.num_failed + 1)


def judged(rollout: Rollout, members: Sequence[Member], config: RolloutConfig) -> Rollout:
    """Given up, if it has to be."""
    if rollout.is_back:
        return rollout
    if rollout.num_failed >= config.max_failed_starts:
        reason = f"{rollout.num_failed} replicas of it failed to start"
        return replace(rollout, is_back=True, reason=reason)
    old, new = tally(members, rollout.old), tally(members, rollout.new)
    if new.num_sent >= config.min_requests:
        allowed = old.error_rate + config.max_error_rate
        if new.error_rate > allowed:
            reason = f"{new.error_rate:.1%} of its requests failed, with {allowed:.1%} allowed"
            return replace(rollout, is_back=True, reason=reason)
    return rollout


def is_over(rollout: Rollout, members: Sequence[Member]) -> bool:
    """Nothing but the new revision is left. One that was given up is never over: it must not begin again."""
    if rollout.is_back:
        return False
    return not any(
        m.instance.revision != rollout.new
        and m.phase in (Phase.STARTING, Phase.READY, Phase.UNREADY, Phase.DRAINING)
        for m in members
    )


def targets(
    rollout: Rollout, members: Sequence[Member], desired: int, config: RolloutConfig
) -> dict[str, int]:
    """How many active replicas of each revision there should be now; with those that drain, at most `desired` + surge.
    Those that are ready do not get fewer while they are not more than enough.
    """
    coming, going = (rollout.old, rollout.new) if rollout.is_back else (rollout.new, rollout.old)
    arrived, leaving = tally(members, coming), tally(members, going)
    # Of those that are given up, what never served is of no use; of those that are replaced, none is started any more.
    useful = leaving.num_ready if rollout.is_back else leaving.num_active
    left = min(max(0, desired - arrived.num_ready), useful)
    num_draining = sum(m.phase is Phase.DRAINING for m in members)
    room = desired + config.surge - max(left, leaving.num_active) - num_draining
    return {coming: min(desired, max(arrived.num_active, room)), going: left}
