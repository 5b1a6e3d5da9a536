"""Which revision of each pool is wanted, which one runs, and with what each was started."""

from collections.abc import Mapping, Sequence

from headrace.config.fleet.pools import PoolConfig
from headrace.config.fleet.scaling import RolloutConfig
from headrace.fleet.autoscaler import rollout as plans
from headrace.fleet.autoscaler.members import Member
from headrace.fleet.autoscaler.rollout import Rollout
from headrace.fleet.drivers.protocol import Instance
from headrace.fleet.drivers.revision import revision_of

#: Revisions whose configuration is kept, of each pool: enough to go back.
MAX_KEPT = 4


class Revisions:
    """Rollouts by pool. What a revision was started with must outlive the configuration, or there is no way back."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, PoolConfig]] = {}
        """By pool and revision, the one applied last at the end."""
        self.rollouts: dict[str, Rollout] = {}

    def apply(self, pools: Sequence[PoolConfig]) -> None:
        """The configuration was read again."""
        names = {pool.name for pool in pools}
        self.known = {name: kept for name, kept in self.known.items() if name in names}
        self.rollouts = {name: r for name, r in self.rollouts.items() if name in names}
        for pool in pools:
            kept = self.known.setdefault(pool.name, {})
            kept.pop(revision_of(pool), None)
            kept[revision_of(pool)] = pool
            while len(kept) > MAX_KEPT:
                del kept[next(iter(kept))]

    def recall(
        self, known: Mapping[str, Mapping[str, PoolConfig]], rollouts: Mapping[str, Rollout]
    ) -> None:
        """What an earlier controller kept, behind what is configured now."""
        for pool, now in self.known.items():
            earlier = dict(known.get(pool, {}))
            for revision, config in now.items():
                earlier.pop(revision, None)
                earlier[revision] = config
            while len(earlier) > MAX_KEPT:
                del earlier[next(iter(earlier))]
            self.known[pool] = earlier
            if pool in rollouts:
                self.rollouts[pool] = rollouts[pool]

    def current(self, pool: str) -> str:
        """The revision that new replicas of a pool have: the configured one, or the old one after it was given up."""
        rollout = self.rollouts.get(pool)
        kept = self.known.get(pool, {})
        if rollout is not None and rollout.is_back:
            return rollout.old
        return next(reversed(kept), "")

    def configs(self, pool: str) -> Mapping[str, PoolConfig]:
        """What each revision is started with."""
        return self.known.get(pool, {})

    def note_failed(self, instance: Instance) -> None:
        """It failed: while its revision is being rolled out, that counts against it."""
        rollout = self.rollouts.get(instance.pool)
        if rollout is not None and instance.revision == rollout.new and not rollout.is_back:
            failed = plans.with_failure(rollout)
            self.rollouts[instance.pool] = failed

    def targets(
        self, pool: PoolConfig, members: Sequence[Member], desired: int, config: RolloutConfig
    ) -> Mapping[str, int]:
        """Active replicas by revision: a rollout goes one look further."""
        configured = revision_of(pool)
        rollout = plans.begun(self.rollouts.get(pool.name), members, configured)
        if rollout is None:
            self.rollouts.pop(pool.name, None)
            return {configured: desired}
        rollout = plans.judged(rollout, members, config)
        if plans.is_over(rollout, members):
            self.rollouts.pop(pool.name, None)
            return {configured: desired}
        self.rollouts[pool.name] = rollout
        return plans.targets(rollout, members, desired, config)
