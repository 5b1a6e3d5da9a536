"""Which tokens run in the next step, out of one budget.

    1. decode rows (one token to catch up), best rank first; short of memory, the worst rank gives way
    2. prefill of running sequences, within what is left of the budget and of `itl_target`
    3. admissions, in queue order, unless memory was short in this step

A sequence is let in when all its tokens fit beside what others were promised, so an admitted prompt is
always finished; only decode growth can run out of memory, and then the worst rank is preempted.

After a failed step its sequences run apart from all others (`trials.py`). When they do not fit beside what
others hold, the others go on, and nobody new comes in until they do.
"""

from collections.abc import Iterable
from collections.abc import Sequence as ListLike
from enum import Enum

from headrace.config.engine import SchedulerConfig
from headrace.core.step import StepPlan
from headrace.engine.memory.block_table import SequenceBlocks
from headrace.engine.memory.ledger import KVLedger
from headrace.engine.memory.loads import BlockLoads
from headrace.engine.memory.matching import PrefixMatch
from headrace.engine.scheduler.admission import admission_margin, create_admission
from headrace.engine.scheduler.budget import StepCost, observe, prefill_cap, step_target
from headrace.engine.scheduler.drafts import MAX_DRAFTS, DraftSource
from headrace.engine.scheduler.eviction import first_observed, row_limit
from headrace.engine.scheduler.plan import Flight, PlanBuilder, num_to_score
from headrace.engine.scheduler.preemption import choose_victim
from headrace.engine.scheduler.queue import WaitingQueue
from headrace.engine.scheduler.roster import Roster
from headrace.engine.scheduler.sequence import Sequence
from headrace.engine.scheduler.steady import Steady
from headrace.engine.scheduler.totals import Totals
from headrace.engine.scheduler.trials import Trials

#: Waiting sequences that may be passed over because blocks of theirs are being loaded, or because a step
#: scores no more prompts. Bounded, so that a step's planning time is; a sequence that waits for capacity is
#: never passed over.
_MAX_LOOK_PAST = 8


class _Verdict(Enum):
    STARTED = "started"
    NO_ROOM = "no room"
    LATER = "later"


class Planner:
    """Makes plans. Owns the estimate of what steps cost."""

    def __init__(
        self,
        config: SchedulerConfig,
        roster: Roster,
        ledger: KVLedger,
        draft_source: DraftSource | None,
        totals: Totals,
        trials: Trials,
        *,
        loads: BlockLoads,
        max_scored: int,
    ) -> None:
        """`max_scored` bounds the positions of one step that report on prompts."""
        self._max_scored = max_scored
        self._loads = loads
        self.cost = StepCost()
        self._config = config
        self._roster = roster
        self._ledger = ledger
        self.policy = create_admission(config)
        self._draft_source = draft_source
        self._totals = totals
        self._trials = trials
        self._margin = admission_margin(ledger)
        self._is_short = False
        self._steady = Steady(roster)
        self._may_be_steady = draft_source is None and not ledger.has_tier

    def plan(self, now: float) -> tuple[StepPlan, Flight] | None:
        """The next step, or None when nothing can run now."""
        again = self._steady.plan(self._totals.steps + 1, now)
        if again is not None:
            self._totals.steps += 1
            return again
        builder = PlanBuilder(self._ledger.block_size)
        self._is_short = False
        self._loads.expire(now)
        roster = self._roster
        suspects = self._trials.current() if self._trials else ()
        if not suspects:
            self._fill(builder, now, roster.running, roster.queue)
        else:
            running = [s for s in suspects if s.blocks is not None]
            self._fill(builder, now, running, [s for s in suspects if s.blocks is None])
            if not builder.rows:
                self._fill(builder, now, [s for s in roster.running if not s.is_suspect], ())
        if not builder.rows and not self._loads.has_unsent and not self._ledger.has_stores:
            if not self._loads.is_loading:
                self._break_tie(now)
            return None
        if self._may_be_steady and not self._trials:
            self._steady.note(builder.planned)
        self._totals.steps += 1
        return builder.finish(
            self._totals.steps,
            now,
            self._ledger.take_copies(),
            roster.take_ended_slots(),
            loads=self._loads.take(),
            stores=self._ledger.take_stores(),
        )

    def observe(self, flight: Flight, seconds: float) -> None:
        """Learn what a step cost."""
        self.cost = observe(self.cost, flight.num_prefill_tokens, flight.num_decode_rows, seconds)

    def _fill(
        self,
        builder: PlanBuilder,
        now: float,
        running: ListLike[Sequence],
        waiting: WaitingQueue | ListLike[Sequence],
    ) -> None:
        """Rows for some of the running and waiting sequences, both best rank first."""
        if running and self._plan_decodes(builder, now, running):
            self._plan_prefills(builder, running)
        if len(waiting) and not self._is_short and self._roster.has_free_slot:
            self._admit(builder, now, waiting)

    # ---- running sequences ---------------------------------------------------------------------

    def _plan_decodes(self, builder: PlanBuilder, now: float, running: ListLike[Sequence]) -> bool:
        """Rows for those that have one token to catch up; whether some have more."""
        ready, has_prefills = self._ready(running)
        # Rows come before guesses: only what all rows leave of the budget is for drafts.
        spare = self._config.max_num_batched_tokens - len(ready)
        for sequence in ready:
            blocks = sequence.blocks
            if blocks is None:
                continue  # preempted a moment ago, for a better rank
            drafts = None if self._draft_source is None else self._propose(sequence, spare)
            start = sequence.num_planned
            if sequence.group.has_window:
                self._apply_policy(sequence, blocks)
            elif sequence.group.is_evicting and row_limit(sequence, self._ledger.block_size) == 0:
                continue
            wanted = 1 if not drafts else 1 + len(drafts)
            granted = self._ledger.reserve(blocks, start, start + wanted)
            if granted == 0:
                granted = self._make_room(sequence, blocks, start + wanted, now)
            if granted == 0:
                continue
            if drafts:
                del drafts[granted - 1 :]
                spare -= len(drafts)
            builder.add_decode(sequence, blocks, drafts)
        return has_prefills

    def _ready(self, running: ListLike[Sequence]) -> tuple[list[Sequence], bool]:
        """Those that have one token to catch up; whether some have more."""
        ready: list[Sequence] = []
        has_prefills = False
        for sequence in running:
            known = len(sequence.tokens) + sequence.num_pending
            if known - sequence.num_planned > 1:
                has_prefills = True
            elif known > sequence.num_planned and known < sequence.group.max_total:
                ready.append(sequence)  # else what is being sampled is its last token
        if self._draft_source is not None:
            # Guesses need all tokens, and a row with guesses leaves open how many there will be.
            ready = [sequence for sequence in ready if sequence.num_in_flight == 0]
        return ready, has_prefills

    def _plan_prefills(self, builder: PlanBuilder, running: ListLike[Sequence]) -> None:
        for sequence in running:
            if sequence.num_remaining > 1:
                count = self._prefill_share(builder, sequence.num_remaining)
                if count == 0:
                    return
                count = self._allowed(builder, sequence, count)
                if count:
                    self._prefill(builder, sequence, count)

    def _propose(self, sequence: Sequence, spare: int) -> list[int] | None:
        limit = min(MAX_DRAFTS, spare, sequence.group.max_total - sequence.num_known - 1)
        if self._draft_source is None or limit <= 0 or sequence.group.beams is not None:
            return None
        if sequence.group.is_evicting:
            return None  # a guess that is wrong would have been observed
        request_id = sequence.group.request.request_id
        drafts = self._draft_source.propose(request_id, sequence.index, sequence.tokens, limit)
        return list(drafts[:limit])

    def _make_room(self, sequence: Sequence, blocks: SequenceBlocks, end: int, now: float) -> int:
        """None is left: preempt worse ranks, none of which has a row yet. Positions granted up to `end`."""
        self._is_short = True
        granted = 0
        while not granted:
            victim = choose_victim(self._roster.running, sequence)
            if victim is None:
                return 0
            self._preempt(victim, now)
            granted = self._ledger.reserve(blocks, sequence.num_planned, end)
        return granted

    def _preempt(self, sequence: Sequence, now: float) -> None:
        self._roster.preempt(sequence, now)
        self._totals.preemptions += 1

    def _break_tie(self, now: float) -> None:
        """Running sequences that all wait for each other's blocks: the worst rank gives way.

        Windowed pools smaller than a window and a step can get there, and beams that wait for a sibling
        which finds no room. Rows in flight would bring blocks back, so then there is no tie.
        """
        running = self._roster.running
        if not running or any(sequence.num_in_flight for sequence in running):
            return
        first = self._roster.queue.first
        if len(running) > 1 or (first is not None and first.rank < running[-1].rank):
            self._preempt(running[-1], now)

    # ---- prefill -------------------------------------------------------------------------------

    def _prefill_share(self, builder: PlanBuilder, num_remaining: int) -> int:
        """Tokens of a prompt that this step takes; 0 when the step is full."""
        left = self._config.max_num_batched_tokens - builder.num_tokens
        if not self._config.chunked_prefill:
            return num_remaining if num_remaining <= left or not builder.num_prefill_tokens else 0
        config, num_decode = self._config, builder.num_decode_rows
        target = step_target(config.itl_target, config.max_step_time, num_decode)
        cap = prefill_cap(self.cost, target, num_decode, config.max_num_batched_tokens)
        return max(0, min(num_remaining, left, cap - builder.num_prefill_tokens))

    def _allowed(self, builder: PlanBuilder, sequence: Sequence, count: int) -> int:
        """As many of the next `count` tokens as its KV policy lets run now, and as this step can report on
        where it must: each of those needs a row of logits.
        """
        if sequence.group.is_evicting:
            count = min(count, row_limit(sequence, self._ledger.block_size))
        wanted = num_to_score(sequence, count)
        room = self._max_scored - builder.num_scored
        return count if wanted <= room else room

    def _prefill(self, builder: PlanBuilder, sequence: Sequence, count: int) -> bool:
        """Plan up to `count` tokens; False when memory is short for even one."""
        blocks = sequence.blocks
        if blocks is None:
            return False
        if sequence.group.has_window:
            self._apply_policy(sequence, blocks)
        start = sequence.num_planned
        granted = self._ledger.reserve(blocks, start, start + count)
        if granted == 0:
            self._is_short = True
            return False
        if granted == 1 and sequence.num_remaining == 1:
            builder.add_decode(sequence, blocks)
        else:
            builder.add_prefill(sequence, blocks, granted)
        return True

    def _apply_policy(self, sequence: Sequence, blocks: SequenceBlocks) -> None:
        """Sinks and window: drop whole blocks between them that the next position does not see.

        Lossy by nature: which keys a position still sees depends on chunks and preemptions, so equal
        tokens are not promised, as they are for the other policies.
        """
        policy, size = sequence.group.policy, self._ledger.block_size
        first = -(-policy.num_sinks // size)
        last = max(0, sequence.num_planned - policy.window + 1) // size
        if last > first:
            self._ledger.drop(blocks, first, last)

    # ---- admission -----------------------------------------------------------------------------

    def _admit(self, builder: PlanBuilder, now: float, waiting: Iterable[Sequence]) -> None:
        roster = self._roster
        self.policy.refresh(roster.queue, now)
        num_passed = 0
        for sequence in waiting:
            if not roster.has_free_slot or self._prefill_share(builder, 1) == 0:
                return
            if not self.policy.allows(sequence) or sequence.loads_seen == self._ledger.num_landed:
                continue
            verdict = self._try_start(sequence, builder, now)
            if verdict is _Verdict.NO_ROOM:
                return
            num_passed += verdict is _Verdict.LATER
            if num_passed > _MAX_LOOK_PAST:
                return

    def _try_start(self, sequence: Sequence, builder: PlanBuilder, now: float) -> _Verdict:
        if sequence.refused_at == self._ledger.num_releases:
            return _Verdict.NO_ROOM  # nothing came back since it last did not fit
        if sequence.group.is_scoring and builder.num_scored >= self._max_scored:
            return _Verdict.LATER
        margin = self._margin if self._roster.running else 0
        blocks = self._fork(sequence, margin)
        if blocks is None:
            opened = self._open(sequence, builder, margin, now)
            if isinstance(opened, _Verdict):
                return opened
            blocks = opened
        sequence.refused_at = -1
        self._roster.start(sequence, blocks, now)
        share = self._prefill_share(builder, sequence.num_remaining)
        share = self._allowed(builder, sequence, share)
        if not self._prefill(builder, sequence, share):
            self._preempt(sequence, now)
            return _Verdict.NO_ROOM
        builder.start(sequence)
        self._totals.admitted(sequence, blocks.num_cached)
        return _Verdict.STARTED

    def _open(
        self, sequence: Sequence, builder: PlanBuilder, margin: int, now: float
    ) -> SequenceBlocks | _Verdict:
        """Blocks for a sequence that shares none with a sibling, or why it cannot have them now."""
        tokens = sequence.tokens
        if sequence.group.is_scoring:
            # A position from the cache has no logits: what is still to be reported on is computed.
            tokens = tokens[: sequence.group.num_scored + 1]
        if sequence.group.is_evicting:
            tokens = tokens[: first_observed(sequence) + 1]
        match = self._ledger.match(sequence.chain, tokens)
        if match.is_pending:
            sequence.loads_seen = self._ledger.num_landed
            return _Verdict.LATER
        if not self._ledger.can_reserve(match, len(sequence.tokens), margin):
            sequence.refused_at = self._ledger.num_releases
            return _Verdict.NO_ROOM
        remaining = len(sequence.tokens) - match.num_blocks * self._ledger.block_size
        if self._prefill_share(builder, remaining) == 0:
            return _Verdict.NO_ROOM  # unchunked, and another prompt runs in this step
        if self._begin_loads(sequence, match, tokens, now):
            return _Verdict.LATER
        blocks = self._ledger.open(match, sequence.chain, len(sequence.tokens))
        if sequence.life == 0:
            sequence.num_cached = min(blocks.num_cached, sequence.group.num_prompt)
        return blocks

    def _begin_loads(
        self, sequence: Sequence, match: PrefixMatch, tokens: list[int], now: float
    ) -> bool:
        """Whether more of its prefix than `match` comes from the tier below: it waits for that."""
        if sequence.loads_life == sequence.life:
            return False
        sequence.loads_life = sequence.life
        if not self._loads.begin(sequence.chain, match, tokens, now):
            return False
        sequence.loads_seen = self._ledger.num_landed
        return True

    def _fork(self, sequence: Sequence, margin: int) -> SequenceBlocks | None:
        """Share the blocks of a sibling, when this one begins and a sibling still has them."""
        group = sequence.group
        if group.beams is not None:
            return self._fork_beam(sequence, margin)
        if not group.is_prompt_computed or len(sequence.tokens) > group.num_shared:
            return None
        if group.is_evicting:
            return None  # what a sibling saw is not known to this one
        source = group.fork_source()
        if source is None or source.blocks is None:
            return None
        blocks = self._ledger.fork(source.blocks, group.num_shared, margin)
        if blocks is not None:
            sequence.chain = blocks.chain
            if sequence.life == 0:
                sequence.num_cached = source.num_cached
        return blocks

    def _fork_beam(self, sequence: Sequence, margin: int) -> SequenceBlocks | None:
        """Share all blocks of the beam that this one is a child of, while that has them."""
        if sequence.origin is None:
            return None
        parent, life = sequence.origin
        if parent.blocks is None or parent.life != life:
            return None
        num_shared = len(sequence.tokens) - 1
        return self._ledger.fork(parent.blocks, num_shared, margin, recompute_last=False)
