"""Putting a step plan together, and what is remembered of it until it is committed."""

from msgspec import Struct

from headrace.core.step import (
    BlockCopy,
    BlockTransfer,
    BlockWrite,
    OutputKind,
    PlanRow,
    SequenceStart,
    StepPlan,
)
from headrace.engine.memory.block_table import SequenceBlocks
from headrace.engine.scheduler.eviction import observes, weighs
from headrace.engine.scheduler.sequence import Sequence, given_embeddings

#: Prompt tokens of one step with log-probabilities, where memory sets no other bound.
MAX_SCORED = 128


class PlannedRow(Struct, frozen=True):
    """A row in flight. Void when the sequence has begun another life since."""

    sequence: Sequence
    life: int
    start: int
    num_tokens: int
    num_draft: int
    is_output: bool

    @property
    def is_void(self) -> bool:
        """Nothing is to be made of its result."""
        return self.sequence.life != self.life


class Flight(Struct, frozen=True):
    """A plan in flight."""

    step_id: int
    planned_at: float
    rows: list[PlannedRow]
    num_prefill_tokens: int
    num_decode_rows: int
    ended_slots: tuple[int, ...]


class PlanBuilder:
    """Collects rows. A sequence's table changes travel with its next row, so none is lost."""

    __slots__ = (
        "_block_size",
        "num_decode_rows",
        "num_prefill_tokens",
        "num_scored",
        "num_tokens",
        "planned",
        "rows",
        "starts",
        "writes",
    )

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.rows: list[PlanRow] = []
        self.planned: list[PlannedRow] = []
        self.starts: list[SequenceStart] = []
        self.writes: list[BlockWrite] = []
        self.num_tokens = 0
        self.num_prefill_tokens = 0
        self.num_scored = 0
        self.num_decode_rows = 0

    def start(self, sequence: Sequence) -> None:
        """The sequence takes its slot in this plan."""
        group = sequence.group
        self.starts.append(
            SequenceStart(
                slot=sequence.slot,
                params=group.row_params,
                mask_token_ids=group.mask_ids,
                token_ids=list(sequence.tokens),
                num_prompt_tokens=group.num_prompt,
                seed=sequence.seed,
                adapter_index=group.adapter_index,
                grammar=group.request.grammar,
                embeddings=given_embeddings(group.request),
            )
        )

    def add_decode(
        self, sequence: Sequence, blocks: SequenceBlocks, drafts: list[int] | None = None
    ) -> None:
        """A row that runs the last token, known or still being sampled, and guesses after it."""
        start, tokens = sequence.num_planned, sequence.tokens
        token_ids = [tokens[start]] if start < len(tokens) else []
        num_draft = 0
        if drafts:
            num_draft = len(drafts)
            token_ids += drafts
        self._add(sequence, blocks, 1 + num_draft, token_ids, num_draft, is_output=True)
        self.num_decode_rows += 1

    def add_prefill(self, sequence: Sequence, blocks: SequenceBlocks, num_tokens: int) -> None:
        """A row that catches up; it gives a token when it reaches the end of what is known."""
        start = sequence.num_planned
        token_ids = sequence.tokens[start : start + num_tokens]
        is_output = start + num_tokens == len(sequence.tokens)
        num_scored = num_to_score(sequence, num_tokens)
        self._add(
            sequence, blocks, num_tokens, token_ids, 0, is_output=is_output, num_scored=num_scored
        )
        self.num_prefill_tokens += num_tokens
        self.num_scored += num_scored

    def finish(
        self,
        step_id: int,
        now: float,
        copies: list[BlockCopy],
        ended_slots: tuple[int, ...],
        *,
        loads: tuple[BlockTransfer, ...] = (),
        stores: tuple[BlockTransfer, ...] = (),
    ) -> tuple[StepPlan, Flight]:
        """The plan, and the note that `commit` will need."""
        plan = StepPlan(
            step_id=step_id,
            rows=tuple(self.rows),
            starts=tuple(self.starts),
            block_writes=tuple(self.writes),
            block_copies=tuple(copies),
            block_loads=loads,
            block_stores=stores,
            ended_slots=ended_slots,
        )
        flight = Flight(
            step_id,
            now,
            self.planned,
            self.num_prefill_tokens,
            self.num_decode_rows,
            ended_slots,
        )
        return plan, flight

    def _add(
        self,
        sequence: Sequence,
        blocks: SequenceBlocks,
        num_tokens: int,
        token_ids: list[int],
        num_draft: int,
        *,
        is_output: bool,
        num_scored: int = 0,
    ) -> None:
        start = sequence.num_planned
        slot = sequence.slot
        if blocks.writes:
            for group, first, block_ids in blocks.take_writes():
                self.writes.append(BlockWrite(slot, group, first, block_ids))
        first_output = 0
        if is_output:
            known = len(sequence.tokens) + sequence.num_pending
            first_output = known - sequence.group.num_prompt
            # What a beam's row gives is not yet a token: it is decided on with the other beams'.
            sequence.num_pending += sequence.group.beams is None
        num_observed, reports_mass = 0, False
        if sequence.group.is_evicting:
            num_observed = observes(sequence, start, start + num_tokens)
            reports_mass = weighs(sequence, start + num_tokens, self._block_size)
        self.rows.append(
            PlanRow(
                slot,
                start,
                num_tokens,
                token_ids,
                OutputKind.SAMPLE if is_output else OutputKind.NONE,
                num_draft,
                first_output,
                num_scored=num_scored,
                num_observed=num_observed,
                reports_mass=reports_mass,
            )
        )
        self.planned.append(
            PlannedRow(sequence, sequence.life, start, num_tokens, num_draft, is_output)
        )
        sequence.num_planned = start + num_tokens
        sequence.num_in_flight += 1
        self.num_tokens += num_tokens


def num_to_score(sequence: Sequence, num_tokens: int) -> int:
    """How many of its next `num_tokens` positions report on the prompt."""
    group = sequence.group
    if not group.is_scoring:
        return 0
    return max(0, min(sequence.num_planned + num_tokens, group.max_scored) - sequence.num_planned)
