"""The scheduler: requests in, plans out, results in, events out. No arrays, no I/O, no clock.

    add -> queue -> (planner: schedule) -> plan ... result -> commit -> events
                          cancel, time-outs and failures end a sequence from anywhere

Up to `max_uncommitted_plans` plans may be in flight. A decode row can then be planned before its input
token is known; when the sequence turns out to have ended (or was preempted), the row is void: it is run
and its result ignored. That is safe because plans run in order: see `memory/ledger.py` for blocks and
`roster.py` for slots. The tokens are the same for any number of plans in flight.
"""

from collections import deque
from collections.abc import Callable

from headrace.config.engine import SchedulerConfig
from headrace.core.errors import HeadraceError, IntegrityError, InternalError, NotFoundError
from headrace.core.events import FinishReason, TokenEvent, TokenLogprobs
from headrace.core.request import Request
from headrace.core.stats import EngineStats
from headrace.core.step import BlockLanding, RowResult, StepPlan, StepResult
from headrace.engine.memory.events import KVEvent
from headrace.engine.memory.ledger import KVLedger
from headrace.engine.memory.loads import BlockLoads, TierIndex
from headrace.engine.scheduler import reports
from headrace.engine.scheduler.beam_group import beam_refusal, go_on
from headrace.engine.scheduler.deadlines import Deadlines
from headrace.engine.scheduler.drafts import DraftSource
from headrace.engine.scheduler.eviction import evict
from headrace.engine.scheduler.gauges import measure
from headrace.engine.scheduler.intake import finished_before, no_adapters, open_group, refusal
from headrace.engine.scheduler.outcome import fault_of, judge
from headrace.engine.scheduler.plan import MAX_SCORED, Flight, PlannedRow
from headrace.engine.scheduler.planner import Planner
from headrace.engine.scheduler.roster import Roster
from headrace.engine.scheduler.sequence import Sequence, SequenceGroup
from headrace.engine.scheduler.steady import one_more
from headrace.engine.scheduler.totals import Totals
from headrace.engine.scheduler.trials import Trials


class Scheduler:
    """One model's scheduler. Not thread-safe. All times are `Clock.monotonic` seconds, passed in."""

    def __init__(
        self,
        config: SchedulerConfig,
        ledger: KVLedger,
        *,
        max_context: int,
        draft_source: DraftSource | None = None,
        max_scored: int = MAX_SCORED,
        adapters: Callable[[Request], int] = no_adapters,
        tier: TierIndex | None = None,
        embedding_size: int = 0,
    ) -> None:
        """`max_scored` bounds the prompt tokens of one step that have log-probabilities; `adapters` tells the
        number of a request's adapter, -1 where that is not loaded; `tier` has blocks that can be loaded;
        prompts may hold vectors of `embedding_size`, 0 for none.
        """
        # A slot that no token of the budget is left for would starve: decode rows always fit a step.
        max_running = min(config.max_num_seqs, config.max_num_batched_tokens)
        self.totals = Totals()
        self.max_tokens = min(max_context, ledger.max_sequence_tokens)
        """Prompt and output of one sequence together: the context, or what memory can hold."""
        self.config = config
        self._ledger = ledger
        self._max_running = max_running
        self._roster = Roster(ledger, max_running)
        self._drafts = draft_source
        self._adapters = adapters
        self._embedding_size = embedding_size
        self._trials = Trials()
        self._loads = BlockLoads(ledger, tier)
        self._planner = Planner(
            config,
            self._roster,
            ledger,
            draft_source,
            self.totals,
            self._trials,
            loads=self._loads,
            max_scored=max_scored,
        )
        self._deadlines = Deadlines()
        self._flights: deque[Flight] = deque()
        self._num_arrivals = 0
        self._committed_at = 0.0

    # ---- requests ------------------------------------------------------------------------------

    def add(self, request: Request, now: float) -> list[TokenEvent]:
        """Take a request in. Returns its final events when it cannot run, or need not."""
        self.totals.started += max(1, request.num_sequences)
        is_known = request.request_id in self._roster.groups
        error = refusal(request, self.max_tokens, self._embedding_size, is_known=is_known)
        error = error or beam_refusal(request, self._ledger, self._max_running, self.max_tokens)
        adapter_index = 0 if request.adapter is None else self._adapters(request)
        if adapter_index < 0:
            error = NotFoundError("The adapter is not loaded.")
        if error is not None:
            self.totals.finished[FinishReason.ERROR.value] += max(1, request.num_sequences)
            return [reports.refused_event(request, i, error) for i in range(max(1, request.n))]
        self._num_arrivals += 1
        group = open_group(
            request,
            self._ledger,
            self.config,
            order=self._num_arrivals,
            now=now,
            room=self.max_tokens,
        )
        group.adapter_index = adapter_index
        self._roster.add(group)
        ended = finished_before(group)
        if ended is not None:
            reason, stop_id = ended
            return [self._end(s, reason, stop_token_id=stop_id) for s in group.sequences]
        self._deadlines.add(group)
        return []

    def cancel(self, request_id: str, index: int | None, now: float) -> list[TokenEvent]:
        """End a request, or one of its sequences. Unknown or ended: nothing happens."""
        group = self._roster.groups.get(request_id)
        if group is None:
            return []
        if index is None:
            return self._end_group(group, FinishReason.CANCELLED)
        if group.beams is not None:
            told = group.beams.cancel(index)
            return self._end_group(group, FinishReason.CANCELLED) if told is None else told
        return [
            self._end(sequence, FinishReason.CANCELLED)
            for sequence in group.live()
            if sequence.index == index
        ]

    def has_work(self) -> bool:
        """Some sequence runs or waits, or blocks are on their way."""
        return bool(self._roster.groups) or self._loads.is_loading or self._ledger.has_stores

    def wake_at(self) -> float | None:
        """When `schedule` has something to do although nothing arrives; None: it does not wait on purpose.

        With the dynamic and static strategies a partial batch waits for time to pass: the loop can sleep
        until then instead of asking again and again.
        """
        if self._roster.running or self._flights or self._loads.is_loading:
            return None
        batch_at = self._planner.policy.wake_at(self._roster.queue)
        due_at = self._deadlines.next_at()
        return batch_at if batch_at is None or due_at is None else min(batch_at, due_at)

    @property
    def is_loading(self) -> bool:
        """Blocks are on their way, which no plan can hasten."""
        return self._loads.is_loading

    # ---- steps ---------------------------------------------------------------------------------

    def land(self, landings: list[BlockLanding]) -> None:
        """Loads that earlier plans began are over."""
        self._loads.land(landings)

    def schedule(self, now: float) -> tuple[StepPlan | None, list[TokenEvent]]:
        """The next plan, if any, and the ends of requests whose time ran out."""
        events = self._expire(now) if self._deadlines.earliest <= now else []
        if self._flights:
            # What is tried is tried alone: its plan is the only one in flight.
            allowed = 1 if self._trials.current() else self.config.max_uncommitted_plans
            if len(self._flights) >= allowed:
                return None, events
        planned = self._planner.plan(now)
        if planned is None:
            return None, events
        plan, flight = planned
        self._flights.append(flight)
        return plan, events

    def commit(self, result: StepResult, now: float) -> list[TokenEvent]:
        """Take in the result of the oldest uncommitted plan."""
        flight = self._flights[0] if self._flights else None
        if (
            flight is None
            or flight.step_id != result.step_id
            or len(flight.rows) != len(result.rows)
        ):
            raise InternalError("A step result does not belong to the oldest plan.")
        self._flights.popleft()
        events: list[TokenEvent] = []
        for planned, row in zip(flight.rows, result.rows, strict=True):
            if planned.sequence.life == planned.life:
                if (event := one_more(planned, row, self._ledger)) is not None:
                    self.totals.generated_tokens += 1
                    events.append(event)
                    continue
                if row.prompt_logprobs:
                    events.append(reports.scored_event(planned, row))
                if planned.sequence.group.beams is not None:
                    events += self._settle_beam(planned, row, now)
                    continue
                if (event := self._settle(planned, row, now)) is not None:
                    events.append(event)
                if row.block_mass:
                    evict(planned.sequence, row, self._ledger)
        # With several plans in flight a step begins when the one before it is done.
        seconds = now - max(flight.planned_at, self._committed_at)
        self._committed_at = now
        self.totals.step_seconds += seconds
        self._planner.observe(flight, seconds)
        return events

    def recover(self, reason: str, now: float) -> list[TokenEvent]:
        """The oldest plan failed, and none behind it was run: take them all back.

        Their sequences are recomputed, as after preemption, those of the failed plan apart from others
        (`trials.py`). One that fails again, alone, ends with `reason`. Cached content stays: plans in
        flight write beyond what is published.
        """
        failed = self._flights[0]
        involved = [row.sequence for row in failed.rows if not row.is_void]
        events: list[TokenEvent] = []
        if len(failed.rows) == 1 and involved and involved[0].is_suspect:
            events += self._fail(involved[0], reason)
        elif involved:
            self._trials.halve(involved)
        for flight in self._flights:
            # The executor may not have seen the plans that told it of ended slots.
            self._roster.ended_slots.extend(flight.ended_slots)
            for row in flight.rows:
                if not row.is_void:
                    self._roster.preempt(row.sequence, now)
        self._flights.clear()
        self._loads.resend()
        return events

    def fail_all(self, reason: str, now: float) -> list[TokenEvent]:
        """The books themselves are in doubt: end everything with an error, forget plans and cached content.

        What planned or committed may have broken off anywhere, and a plan may have run in part.
        """
        self._flights.clear()
        self._loads.resend()
        self._trials.clear()
        self._deadlines.clear()
        self._ledger.take_copies()
        events = [
            event
            for group in list(self._roster.groups.values())
            for event in self._end_group(group, FinishReason.ERROR, error=InternalError(reason))
        ]
        self._roster.end_all_slots()
        self._ledger.clear_cache()
        return events

    # ---- numbers -------------------------------------------------------------------------------

    def stats(self, now: float) -> EngineStats:
        """Gauges and totals now. O(sequences)."""
        return measure(self._roster, self.totals, self._ledger, now, self.wake_at())

    def take_kv_events(self) -> list[KVEvent]:
        """Blocks stored in and removed from the prefix cache since the last call."""
        return self._ledger.take_events()

    def check_integrity(self) -> None:
        """Raise IntegrityError unless the ledger adds up; counted too. O(blocks): for idle moments."""
        try:
            self._ledger.check_integrity()
        except IntegrityError:
            self.totals.integrity_failures += 1
            raise

    # ---- inside --------------------------------------------------------------------------------

    def _settle(self, planned: PlannedRow, row: RowResult, now: float) -> TokenEvent | None:
        """Move one sequence on by what its row gave."""
        sequence = planned.sequence
        sequence.num_in_flight -= 1
        if row.error is not None:
            return self._fail(sequence, row.error)[0]
        if not planned.is_output:
            self._advance(sequence, planned.start + planned.num_tokens)
            return reports.progress_event(sequence)
        error = fault_of(row, planned.num_draft)
        if error is not None:
            return self._end(sequence, FinishReason.ERROR, error=error)
        sequence.num_pending -= 1
        sequence.is_suspect = False
        room = sequence.group.max_total - len(sequence.tokens)
        if sequence.group.request.params.max_tokens == 0:
            room = 0
        kept, finish, stop_id = judge(
            row.token_ids, sequence.group.stop_ids, room, is_complete=row.is_complete
        )
        token_ids = row.token_ids if kept == len(row.token_ids) else row.token_ids[:kept]
        sequence.tokens.extend(token_ids)
        self.totals.generated_tokens += kept
        # The row's own tokens, and the drafts that were right; the last new token has not run yet.
        computed = planned.start + planned.num_tokens - planned.num_draft + kept - 1
        self._advance(sequence, computed)
        if planned.num_draft and sequence.blocks is not None:
            sequence.num_planned = computed
            self._ledger.truncate(sequence.blocks, computed)
        if sequence.first_token_at is None:
            sequence.first_token_at = now
        if finish is not None:
            return self._end(sequence, finish, token_ids, row.logprobs[:kept], stop_id)
        if sequence.has_reported:
            request_id = sequence.group.request.request_id
            return TokenEvent(request_id, sequence.index, token_ids, row.logprobs[:kept])
        return reports.event_of(sequence, token_ids, row.logprobs[:kept])

    def _advance(self, sequence: Sequence, num_computed: int) -> None:
        sequence.num_computed = num_computed
        if sequence.blocks is not None:
            self._ledger.commit(sequence.blocks, num_computed, sequence.tokens)
        group = sequence.group
        if not group.is_prompt_computed and num_computed >= group.num_shared:
            self._roster.prompt_computed(group)

    def _fail(self, sequence: Sequence, reason: str) -> list[TokenEvent]:
        """It cannot be computed; whatever it read or wrote is not to be trusted."""
        if sequence.blocks is not None:
            self._ledger.withdraw(sequence.blocks)
        error = InternalError(reason)
        if sequence.group.beams is not None:
            return self._end_group(sequence.group, FinishReason.ERROR, error=error)
        return [self._end(sequence, FinishReason.ERROR, error=error)]

    # ---- beams ---------------------------------------------------------------------------------

    def _settle_beam(self, planned: PlannedRow, row: RowResult, now: float) -> list[TokenEvent]:
        """Keep what a beam's row gave; when it is the last of its group's, let the beams go on."""
        sequence, group = planned.sequence, planned.sequence.group
        beams = group.beams
        assert beams is not None
        sequence.num_in_flight -= 1
        error = row.error or row.dead_end
        if error is None and planned.is_output and len(row.logprobs) != 1:
            error = "A beam's row gave no continuations."
        if error is not None:
            return self._fail(sequence, error)
        self._advance(sequence, planned.start + planned.num_tokens)
        if not planned.is_output:
            return []
        sequence.is_suspect = False
        self.totals.generated_tokens += 1
        beams.take(sequence, row.logprobs[0], now)
        if not beams.is_ready:
            return []
        children = beams.decide()
        if not children:
            return self._end_group(group, FinishReason.STOP)
        go_on(beams, children, self._roster)
        return []

    def _end_group(
        self, group: SequenceGroup, reason: FinishReason, *, error: HeadraceError | None = None
    ) -> list[TokenEvent]:
        """End all of a request; a search that is over, or out of time, with what it has found."""
        if group.beams is None:
            return [self._end(s, reason, error=error) for s in group.live()]
        answers = group.beams.outputs_at(reason)
        events: list[TokenEvent] = []
        for sequence in group.live():
            if sequence.index < len(answers):
                _, token_ids, logprobs, finish, stop_id = answers[sequence.index]
                event = self._end(sequence, finish, token_ids, logprobs, stop_id)
            else:
                event = self._end(sequence, reason, error=error)
            if sequence.index in group.beams.open_outputs:
                events.append(event)
        return events

    def _end(
        self,
        sequence: Sequence,
        reason: FinishReason,
        token_ids: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprobs, ...] = (),
        stop_token_id: int | None = None,
        *,
        error: HeadraceError | None = None,
    ) -> TokenEvent:
        self._roster.end(sequence, reason)
        self.totals.finished[reason.value] += 1
        if self._drafts is not None:
            self._drafts.ended(sequence.group.request.request_id, sequence.index)
        self._deadlines.forget_ended(self._roster.groups, len(self._roster.groups))
        return reports.event_of(sequence, token_ids, logprobs, stop_token_id, error)

    def _expire(self, now: float) -> list[TokenEvent]:
        events: list[TokenEvent] = []
        for group in self._deadlines.due(now):
            reason, error = reports.time_out(group, now)
            if reason is not None:
                events += self._end_group(group, reason, error=error)
        return events
