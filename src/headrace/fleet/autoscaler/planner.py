"""The autoscaler's mind: looks in, decisions and actions out. No clock, no I/O, no asyncio: a simulator drives it.

    planner = Planner(pools, config)
    every period:
        members = planner.observe(instances, facts, now=..., wall=...)
        views = planner.views(signals_of_each_group)        # see `counts` for what a group's signals need
        outcome = planner.step(views, now=..., wall=...)
        do outcome.actions;  planner.note_started / note_failed for what came of them

`observe` may be given the instances of some drivers only (those that could be asked): pools that were not seen are left
alone. Everything that a new controller has to know besides is in `memory` (`memory.py`).
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from headrace.config.fleet.pools import PoolConfig
from headrace.config.fleet.scaling import AutoscalerConfig
from headrace.fleet.autoscaler.actions import Action, Drain, Park, Start, Stop, Undrain, Wake
from headrace.fleet.autoscaler.backoff import STABLE_SECONDS, Backoff
from headrace.fleet.autoscaler.bursts import Bursts
from headrace.fleet.autoscaler.cold_starts import ColdStart, ColdStarts, StartKind
from headrace.fleet.autoscaler.gather import Counts
from headrace.fleet.autoscaler.groups import GroupKey, Holding, grouped
from headrace.fleet.autoscaler.members import Facts, Member, Phase, observed
from headrace.fleet.autoscaler.plan import FleetState, GroupView, plan_fleet
from headrace.fleet.autoscaler.reconcile import Wanted, reconcile
from headrace.fleet.autoscaler.revisions import Revisions
from headrace.fleet.autoscaler.scale import ScalingState
from headrace.fleet.autoscaler.values import Decision, Signals
from headrace.fleet.drivers.protocol import Instance, InstanceState

#: Seconds in which a list must have what was started.
LIST_DELAY = 15.0


class Outcome(NamedTuple):
    """Of one step."""

    decisions: tuple[Decision, ...]
    actions: tuple[Action, ...]
    """In the order in which they are to be done; none in advisory mode."""


class Fault(NamedTuple):
    """A replica that failed."""

    pool: str
    instance: str
    text: str


class Planner:
    """See the module. One for each fleet."""

    def __init__(self, pools: Sequence[PoolConfig], config: AutoscalerConfig) -> None:
        self.config = config
        self.pools: dict[str, PoolConfig] = {}
        self.groups: dict[GroupKey, tuple[PoolConfig, ...]] = {}
        self.overrides: dict[str, int] = {}
        """By pool: what an operator has set."""
        self.num_failures: dict[str, int] = {}
        """By pool, since the beginning."""
        self.cold_starts = ColdStarts()
        self.revisions = Revisions()
        self.members: dict[str, Member] = {}
        """By id, as of the last look."""
        self._seen_pools: frozenset[str] = frozenset()
        self._state = FleetState()
        self._backoffs: dict[str, Backoff] = {}
        self._warm_backoffs: dict[str, Backoff] = {}
        self._draining: set[str] = set()
        self._waking: dict[str, tuple[float, StartKind]] = {}
        self._warming: set[str] = set()
        self._mourned: set[str] = set()
        """Failed ones that were counted."""
        self._fresh: dict[str, float] = {}
        """Started ones that no list has had yet, and until when they are believed in."""
        self._wanted_last: dict[str, int] = {}
        self._news: list[ColdStart] = []
        self._faults: list[Fault] = []
        self.apply(pools, config)

    def apply(self, pools: Sequence[PoolConfig], config: AutoscalerConfig) -> None:
        """The configuration was read again."""
        self.config = config
        self.pools = {pool.name: pool for pool in pools}
        self.groups = grouped(pools)
        self.revisions.apply(pools)
        self.cold_starts.keep(set(self.pools))
        self.overrides = {
            n: min(c, self.pools[n].max_replicas)
            for n, c in self.overrides.items()
            if n in self.pools
        }
        self._wanted_last = {n: c for n, c in self._wanted_last.items() if n in self.pools}
        kept = {key: state for key, state in self._state.groups.items() if key in self.groups}
        self._state = FleetState(groups=kept)

    def bursts(self) -> dict[str, Bursts]:
        """What bursts took, by the first pool of a group."""
        found = self._state.groups
        return {pools[0].name: found[k].bursts for k, pools in self.groups.items() if k in found}

    def recall_bursts(self, bursts: Mapping[str, Bursts]) -> None:
        """Before the first look: as `bursts` was. Those of other pools are left out."""
        known = {
            key: ScalingState(bursts=bursts[pools[0].name])
            for key, pools in self.groups.items()
            if pools[0].name in bursts
        }
        self._state = FleetState(groups={**self._state.groups, **known})

    # -- what there is ----------------------------------------------------------------------------

    def observe(
        self,
        instances: Sequence[Instance],
        facts: Mapping[str, Facts],
        *,
        unseen: Collection[str] = (),
        now: float,
        wall: float,
    ) -> Mapping[str, Member]:
        """One look; `unseen` are pools whose driver could not be asked: what is known of them stays."""
        before = self.members
        here = {instance.id for instance in instances}
        # Some places list what they have just started a moment later.
        self._fresh = {
            i: until for i, until in self._fresh.items() if until > now and i not in here
        }
        known = [
            m.instance
            for m in before.values()
            if m.id not in here and (m.instance.pool in unseen or m.id in self._fresh)
        ]
        self.members = observed(
            [*instances, *known],
            facts,
            before,
            waking=self._waking,
            warming=self._warming,
            now=now,
        )
        self._seen_pools = frozenset(
            ({*self.pools} | {m.instance.pool for m in self.members.values()}) - set(unseen)
        )
        for member in self.members.values():
            self._note_phase(member, before.get(member.id), now, wall)
        for ids in (self._draining, self._warming, self._mourned):
            ids.intersection_update(self.members)
        self._waking = {i: v for i, v in self._waking.items() if i in self.members}
        return self.members

    def of_group(self, key: GroupKey) -> list[Member]:
        """Its members."""
        names = {pool.name for pool in self.groups.get(key, ())}
        return [member for member in self.members.values() if member.instance.pool in names]

    def counts(self, key: GroupKey) -> Counts:
        """What of a group is not ready, for its signals; the ready ones are those in phase READY."""
        members = self.of_group(key)
        return Counts(
            num_pending=sum(m.phase in (Phase.STARTING, Phase.UNREADY) for m in members),
            num_warm=sum(m.phase is Phase.WARM for m in members),
        )

    def seen_groups(self) -> list[GroupKey]:
        """Groups all of whose pools could be seen: only these are decided on."""
        return [
            key
            for key, pools in self.groups.items()
            if all(pool.name in self._seen_pools for pool in pools)
        ]

    def backoff(self, pool: str) -> Backoff:
        """How a pool's starts have gone."""
        return self._backoffs.get(pool, Backoff())

    def take_cold_starts(self) -> list[ColdStart]:
        """Those that were seen since the last call."""
        news, self._news = self._news, []
        return news

    def take_faults(self) -> list[Fault]:
        """Those that were seen since the last call."""
        faults, self._faults = self._faults, []
        return faults

    # -- what is to be done -----------------------------------------------------------------------

    def step(self, signals: Mapping[GroupKey, Signals], *, now: float, wall: float) -> Outcome:
        """Decide, for the groups that signals are given of, and say what to do for it."""
        views = [self._view(key, signals[key]) for key in self.seen_groups() if key in signals]
        plan, self._state = plan_fleet(views, self._state, self.config, wall=wall)
        if self.config.advisory:
            return Outcome(plan.decisions, ())
        actions: list[Action] = []
        for decision in plan.decisions:
            pool = self.pools[decision.pool]
            own = self._of_pool(pool.name)
            self._wanted_last[pool.name] = decision.desired
            counts = self.revisions.targets(pool, own, decision.desired, self.config.rollout)
            actions += reconcile(
                self._wanted(pool, counts, plan.warm[pool.name]), own, self.config, now
            )
        for name in sorted(self._seen_pools - self.pools.keys()):
            gone = PoolConfig(name=name, model="-", min_replicas=0)
            actions += reconcile(self._wanted(gone, {}, 0), self._of_pool(name), self.config, now)
        for action in actions:
            self._note_action(action, now)
        return Outcome(plan.decisions, tuple(actions))

    def note_started(self, instance: Instance, *, prestarted: bool, now: float) -> None:
        """A start was made: it counts from now on, whether or not the next list has it already."""
        if prestarted:
            self._warming.add(instance.id)
        self._fresh[instance.id] = now + LIST_DELAY
        phase = Phase.WARMING if prestarted else Phase.STARTING
        self.members[instance.id] = Member(instance=instance, phase=phase, since=now)

    def note_failed(self, pool: str, reason: str, now: float, *, warm: bool = False) -> None:
        """A start was refused, or what was started has failed."""
        self.num_failures[pool] = self.num_failures.get(pool, 0) + 1
        backoffs = self._warm_backoffs if warm else self._backoffs
        backoffs[pool] = backoffs.get(pool, Backoff()).failed(
            now, reason, self.config.min_backoff, self.config.max_backoff
        )

    def note_not_woken(self, instance_id: str, reason: str, now: float) -> None:
        """It was asked to serve, and does not: for a while none is asked, so that others are started."""
        self._waking.pop(instance_id, None)
        if (member := self.members.get(instance_id)) is not None:
            self.note_failed(member.instance.pool, reason, now, warm=True)

    # -- within -----------------------------------------------------------------------------------

    def _view(self, key: GroupKey, signals: Signals) -> GroupView:
        pools = self.groups[key]
        slowest = max(self.cold_starts.expected(pool.name) for pool in pools)
        holdings = tuple(self._holding(pool) for pool in pools)
        return GroupView(holdings=holdings, signals=signals, cold_start=slowest)

    def _holding(self, pool: PoolConfig) -> Holding:
        members = self._of_pool(pool.name)
        return Holding(
            pool=pool,
            num_ready=sum(m.phase is Phase.READY for m in members),
            num_pending=sum(m.phase in (Phase.STARTING, Phase.UNREADY) for m in members),
            num_warm=sum(m.phase in (Phase.WARM, Phase.WARMING) for m in members),
            surplus=self._surplus(pool.name, members),
            override=self.overrides.get(pool.name),
        )

    def _surplus(self, pool: str, members: Sequence[Member]) -> int:
        """A rollout's, beyond what was wanted at the last look: else the surge would be kept as if it were needed."""
        wanted = self._wanted_last.get(pool)
        if wanted is None or pool not in self.revisions.rollouts:
            return 0
        return max(0, sum(member.is_active for member in members) - wanted)

    def _wanted(self, pool: PoolConfig, counts: Mapping[str, int], num_warm: int) -> Wanted:
        return Wanted(
            pool=pool,
            revision=self.revisions.current(pool.name),
            counts=counts,
            configs=self.revisions.configs(pool.name),
            num_warm=num_warm,
            backoff=self.backoff(pool.name),
            warm_backoff=self._warm_backoffs.get(pool.name, Backoff()),
            draining=frozenset(self._draining),
        )

    def _of_pool(self, name: str) -> list[Member]:
        return [member for member in self.members.values() if member.instance.pool == name]

    def _note_action(self, action: Action, now: float) -> None:
        match action:
            case Drain():
                self._draining.add(action.instance_id)
            case Undrain():
                self._draining.discard(action.instance_id)
            case Park():
                self._draining.discard(action.instance_id)
            case Wake():
                member = self.members[action.instance_id]
                is_empty = member.instance.state is InstanceState.PRESTARTED
                kind = StartKind.PRESTARTED if is_empty else StartKind.PARKED
                self._waking[action.instance_id] = (now, kind)
                self._warming.discard(action.instance_id)
            case Stop():
                self._note_stop(self.members[action.instance_id], action.reason, now)
            case Start():
                pass

    def _note_stop(self, member: Member, reason: str, now: float) -> None:
        """One that is stopped because it never served has failed; those that failed by themselves were counted."""
        is_late = member.phase in (Phase.STARTING, Phase.WARMING) and (
            now - member.since > self.config.start_timeout
        )
        if is_late:
            self._failed(member, reason, now)

    def _note_phase(self, member: Member, old: Member | None, now: float, wall: float) -> None:
        pool = member.instance.pool
        if member.phase is Phase.FAILED and member.id not in self._mourned:
            self._mourned.add(member.id)
            self._failed(member, member.instance.reason or "it ended", now)
        if member.phase is not Phase.READY:
            return
        since = member.facts.ready_since if member.facts.ready_since is not None else now
        if now - since >= STABLE_SECONDS and pool in self._backoffs:
            self._backoffs[pool] = self._backoffs[pool].stable()
        was_seen_starting = old is not None and old.phase is Phase.STARTING
        waked = self._waking.pop(member.id, None)
        if waked is not None:
            begun, kind = waked
            self._warm_backoffs.pop(pool, None)
        elif was_seen_starting and member.instance.started > 0:
            begun, kind = now - max(0.0, wall - member.instance.started), StartKind.EXEC
        else:
            return
        start = ColdStart(pool=pool, kind=kind, seconds=max(0.0, since - begun))
        self.cold_starts.note(start)
        self._news.append(start)

    def _failed(self, member: Member, reason: str, now: float) -> None:
        is_warm = member.id in self._warming
        self.note_failed(member.instance.pool, reason, now, warm=is_warm)
        self.revisions.note_failed(member.instance)
        backoff = (self._warm_backoffs if is_warm else self._backoffs)[member.instance.pool]
        words = f"{member.id} failed: {reason}"
        if backoff.is_crash_loop:
            words += f" (crash loop: {backoff.num_failures} in a row, the next in {backoff.until - now:.0f} s)"
        self._faults.append(Fault(member.instance.pool, member.id, words))
