"""Decoding on: what most steps are, without the questions that only other steps need to ask.

While the same sequences decode, the next plan is the former one with every row a token further, and its
result is one more token for each. Both are made here in one piece, because a step's planning runs with empty
caches, behind a model that went through all of its weights: what it costs is how much code and data it
touches, not how much it computes. Whatever is not plain is left to the planner and to `Scheduler`, which
would have made the very same of what is.
"""

from headrace.core.events import TokenEvent
from headrace.core.step import OutputKind, PlanRow, RowResult, StepPlan
from headrace.engine.memory.ledger import KVLedger
from headrace.engine.scheduler.plan import Flight, PlannedRow
from headrace.engine.scheduler.roster import Roster
from headrace.engine.scheduler.sequence import Sequence


class Steady:
    """The sequences of the last plan, as long as the next one can only run them one token further."""

    __slots__ = ("_num_changes", "_roster", "_sequences")

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._sequences: list[Sequence] = []
        self._num_changes = -1

    def note(self, planned: list[PlannedRow]) -> None:
        """A plan with these rows was made, and nobody is on trial. It may be the first of many alike."""
        roster, running = self._roster, self._roster.running
        is_steady = (
            len(planned) == len(running)
            and not (roster.queue and roster.has_free_slot)
            and all(
                row.sequence is sequence and row.is_output and _is_plain(sequence)
                for row, sequence in zip(planned, running, strict=True)
            )
        )
        # All of this changes only with the roster.
        self._sequences = list(running) if is_steady else []
        self._num_changes = roster.num_changes

    def plan(self, step_id: int, now: float) -> tuple[StepPlan, Flight] | None:
        """The next plan, or None, and nothing is done, when the planner must look."""
        sequences, roster = self._sequences, self._roster
        if not sequences or self._num_changes != roster.num_changes or roster.ended_slots:
            return None
        rows: list[PlanRow] = []
        planned: list[PlannedRow] = []
        for sequence in sequences:
            tokens, start, blocks = sequence.tokens, sequence.num_planned, sequence.blocks
            known, group = len(tokens) + sequence.num_pending, sequence.group
            if (
                known - start != 1
                or known >= group.max_total
                or blocks is None
                or start >= blocks.capacity
                or blocks.may_share_writes
                or blocks.writes
            ):
                return None
            rows.append(
                PlanRow(
                    sequence.slot,
                    start,
                    1,
                    [tokens[start]] if start < len(tokens) else [],
                    OutputKind.SAMPLE,
                    0,
                    known - group.num_prompt,
                )
            )
            planned.append(PlannedRow(sequence, sequence.life, start, 1, 0, True))
        for sequence in sequences:
            sequence.num_planned += 1
            sequence.num_pending += 1
            sequence.num_in_flight += 1
        flight = Flight(step_id, now, planned, 0, len(planned), ())
        return StepPlan(step_id=step_id, rows=tuple(rows)), flight


def one_more(planned: PlannedRow, row: RowResult, ledger: KVLedger) -> TokenEvent | None:
    """Give a decoding sequence its next token. None, and nothing is done, unless that is all there is to it.

    The row is not void.
    """
    sequence, token_ids = planned.sequence, row.token_ids
    group, tokens, blocks = sequence.group, sequence.tokens, sequence.blocks
    if (
        len(token_ids) != 1
        or not sequence.has_reported
        or not planned.is_output
        or planned.num_draft
        or token_ids[0] in group.stop_ids
        or len(tokens) + 1 >= group.max_total
        or row.error is not None
        or row.dead_end is not None
        or row.is_complete
        or row.prompt_logprobs
        or row.block_mass
        or group.beams is not None
        or not group.is_prompt_computed
        or blocks is None
    ):
        return None
    sequence.num_in_flight -= 1
    sequence.num_pending -= 1
    sequence.is_suspect = False
    tokens.append(token_ids[0])
    sequence.num_computed = computed = planned.start + planned.num_tokens
    ledger.commit(blocks, computed, tokens)
    return TokenEvent(group.request.request_id, sequence.index, token_ids, row.logprobs)


def _is_plain(sequence: Sequence) -> bool:
    """Nothing but its next token is to be thought of."""
    group = sequence.group
    return group.beams is None and not group.has_window and not group.is_evicting
