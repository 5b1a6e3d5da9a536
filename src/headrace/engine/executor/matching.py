"""Which tokens the grammars of a step's sequences allow.

Each slot with a grammar has a matcher that stands behind the last token of its history. It is set there
when the sequence takes the slot (new, forked, or back from preemption), by its outputs so far, so its
state is always that of the tokens and never of what happened to them.

A grammar is stronger than a minimum length: the ends of a sequence are masked before `min_tokens` only
while something else is allowed.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import GrammarError
from headrace.core.step import OutputKind, PlanRow, SequenceStart, StepPlan
from headrace.grammar.compiler import GrammarCompiler
from headrace.grammar.matcher import MaskFiller, Matcher

_DEAD_END = "The grammar allows none of the model's tokens here, and the answer is not complete."


class Matchers:
    """Matchers by slot. Not thread-safe."""

    def __init__(self, compiler: GrammarCompiler | None) -> None:
        self._compiler = compiler
        self._filler = MaskFiller()
        self._matchers: dict[int, Matcher] = {}
        self._faults: dict[int, str] = {}
        """Slots whose grammar has no way on."""
        self._ends: dict[int, tuple[int, NDArray[np.uint32]]] = {}
        """Minimum length, and the mask of what may not come before it."""
        self._masks: NDArray[np.uint32] = np.zeros((0, 0), np.uint32)

    def __bool__(self) -> bool:
        """Some slot has a grammar."""
        return bool(self._matchers or self._faults)

    def start(self, start: SequenceStart) -> None:
        """A sequence takes its slot."""
        self.end(start.slot)
        if start.grammar is None:
            return
        try:
            if self._compiler is None:
                raise GrammarError("This engine matches no grammars.")
            matcher = Matcher(self._compiler.compile(start.grammar))
        except GrammarError as error:
            self._faults[start.slot] = str(error)
            return
        self._matchers[start.slot] = matcher
        self.accept(start.slot, start.token_ids[start.num_prompt_tokens :])
        if start.params.min_tokens > 0 and start.mask_token_ids:
            ends = _mask_without(start.mask_token_ids, matcher.num_tokens)
            self._ends[start.slot] = (start.params.min_tokens, ends)

    def end(self, slot: int) -> None:
        """The slot is free."""
        self._matchers.pop(slot, None)
        self._faults.pop(slot, None)
        self._ends.pop(slot, None)

    def masks(self, plan: StepPlan, num_rows: int, vocab_size: int) -> NDArray[np.uint32] | None:
        """[R, ceil(V / 32)]: what each draw of the plan may give; None when no grammar bounds any.

        Valid until the next call.
        """
        jobs: list[tuple[Matcher, int]] = []
        bounded: list[tuple[PlanRow, int]] = []
        drafted: list[tuple[PlanRow, int]] = []
        first = 0
        for row in plan.rows:
            if row.output is OutputKind.NONE:
                continue
            matcher = self._matchers.get(row.slot)
            if matcher is not None:
                bounded.append((row, first))
                jobs.append((matcher, first))
                if row.num_draft:
                    drafted.append((row, first))
            first += row.num_draft + 1
        if not bounded:
            return None
        # A vocabulary that brings an end of its own is one token wider than the model.
        table = self._table(num_rows, max(vocab_size, jobs[0][0].num_tokens))
        self._filler.fill(jobs, table)
        for row, place in drafted:
            self._fill_drafts(row, table, place)
        for row, place in bounded:
            self._bound(row, table, place)
        return table

    def has(self, slot: int) -> bool:
        """Whether a grammar bounds what this slot says."""
        return slot in self._matchers or slot in self._faults

    def dead_end(self, slot: int) -> str | None:
        """Why this slot's grammar has no way on, in one sentence; None when it has."""
        return self._faults.get(slot)

    def accept(self, slot: int, token_ids: Sequence[int]) -> bool:
        """Move a slot's matcher over tokens; whether the answer is complete then."""
        matcher = self._matchers.get(slot)
        if matcher is None:
            return False
        if not matcher.accept(token_ids):
            self._faults[slot] = matcher.fault or _DEAD_END
            return False
        return matcher.is_complete

    def cut(self, slot: int, token_ids: list[int]) -> list[int]:
        """As many of these accepted tokens as the grammar takes before it is complete."""
        matcher = self._matchers.get(slot)
        if matcher is None or len(token_ids) == 1:
            return token_ids
        count = 0
        for token_id in token_ids:
            # A draw of -1 behind the first is a place where nothing is allowed: told in its own step.
            if token_id < 0 or matcher.is_complete or not matcher.try_accept(token_id):
                break
            count += 1
        matcher.rollback(count)
        return token_ids[: max(1, count)]

    def _table(self, num_rows: int, num_tokens: int) -> NDArray[np.uint32]:
        words = -(-num_tokens // 32)
        if self._masks.shape[1] != words or len(self._masks) < num_rows:
            self._masks = np.empty((num_rows, words), np.uint32)
        table = self._masks[:num_rows]
        table.fill(0xFFFF_FFFF)
        return table

    def _fill_drafts(self, row: PlanRow, table: NDArray[np.uint32], place: int) -> None:
        """The masks behind each guess; behind one that is not allowed, nothing is drawn."""
        matcher = self._matchers[row.slot]
        taken = 0
        for draft in row.token_ids[-row.num_draft :]:
            if matcher.is_complete or not matcher.try_accept(draft):
                break
            taken += 1
            self._filler.fill([(matcher, place + taken)], table)
        matcher.rollback(taken)

    def _bound(self, row: PlanRow, table: NDArray[np.uint32], place: int) -> None:
        """Notice dead ends; mask the ends where the answer is too short."""
        matcher = self._matchers[row.slot]
        if matcher.fault is not None or not table[place].any():
            self._faults[row.slot] = matcher.fault or _DEAD_END
        if row.slot not in self._ends:
            return
        min_tokens, ends = self._ends[row.slot]
        for draft in range(min(row.num_draft + 1, min_tokens - row.first_output)):
            longer = table[place + draft] & ends
            if longer.any():
                table[place + draft] = longer


def _mask_without(token_ids: Sequence[int], num_tokens: int) -> NDArray[np.uint32]:
    mask: NDArray[np.uint32] = np.full(-(-num_tokens // 32), 0xFFFF_FFFF, np.uint32)
    for token_id in token_ids:
        if 0 <= token_id < num_tokens:
            mask[token_id // 32] &= np.uint32(0xFFFF_FFFF ^ (1 << token_id % 32))
    return mask
