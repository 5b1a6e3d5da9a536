"""Ends reasoning that has used its tokens: see `core.sampling.ThinkingLimit`.

The state is a function of the output so far. It is made anew from that when a sequence takes a slot, so that
preemption, a fork or an earlier replica's output leave no trace in what follows.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.core.sampling import ThinkingLimit
from headrace.core.step import OutputKind, PlanRow, SequenceStart, StepPlan


class ThinkingState:
    """Where one output stands: before reasoning, in it, at its forced end, or behind it."""

    __slots__ = ("_is_over", "_limit", "_num_forced", "_num_thought", "_recent")

    def __init__(self, limit: ThinkingLimit) -> None:
        self._limit = limit
        self._num_thought = -1 if limit.begin_ids else 0
        """Tokens of reasoning; -1 before it."""
        self._num_forced = 0
        self._is_over = False
        self._recent: tuple[int, ...] = ()

    @property
    def forced(self) -> int | None:
        """The token that must come next; None leaves the choice."""
        limit = self._limit
        if self._is_over or self._num_thought < limit.max_tokens:
            return None
        return limit.forced_ids[self._num_forced]

    def advance(self, token_id: int) -> None:
        """Move over one token of the output."""
        limit = self._limit
        if self._is_over:
            return
        forced = self.forced
        if forced is not None:
            # Output of a replica without this bound may go on otherwise: then it has had its chance.
            self._num_forced += 1
            self._is_over = token_id != forced or self._num_forced == len(limit.forced_ids)
            return
        wanted = limit.begin_ids if self._num_thought < 0 else limit.end_ids
        self._recent = (*self._recent, token_id)[-len(wanted) :]
        is_there = self._recent == wanted
        if self._num_thought >= 0:
            self._num_thought += 1
            self._is_over = is_there
        elif is_there:
            self._num_thought, self._recent = 0, ()

    def after(self, token_ids: Sequence[int]) -> "ThinkingState":
        """A state of its own, further on by these tokens."""
        state = ThinkingState(self._limit)
        for name in ThinkingState.__slots__:
            setattr(state, name, getattr(self, name))
        for token_id in token_ids:
            state.advance(token_id)
        return state


class ThinkingLimits:
    """States by slot. Not thread-safe."""

    def __init__(self) -> None:
        self._states: dict[int, ThinkingState] = {}

    def __bool__(self) -> bool:
        """Some slot has a limit."""
        return bool(self._states)

    def start(self, start: SequenceStart) -> None:
        """A sequence takes its slot."""
        self.end(start.slot)
        if start.params.thinking is not None:
            outputs = start.token_ids[start.num_prompt_tokens :]
            self._states[start.slot] = ThinkingState(start.params.thinking).after(outputs)

    def end(self, slot: int) -> None:
        """The slot is free."""
        self._states.pop(slot, None)

    def accept(self, slot: int, token_ids: Sequence[int]) -> None:
        """The slot's output has grown by these tokens."""
        state = self._states.get(slot)
        if state is not None:
            for token_id in token_ids:
                state.advance(token_id)

    def bound(
        self, plan: StepPlan, allowed: NDArray[np.uint32] | None, num_rows: int, vocab_size: int
    ) -> NDArray[np.uint32] | None:
        """`allowed` [R, words] with but one token where that is forced; None where nothing is bounded.

        Whatever else bounds a draw, what is forced wins.
        """
        forced = self._forced(plan)
        if not forced:
            return allowed
        words = -(-vocab_size // 32) if allowed is None else allowed.shape[1]
        table: NDArray[np.uint32] = np.full((num_rows, words), 0xFFFF_FFFF, np.uint32)
        if allowed is not None:
            table[:] = allowed
        for place, token_id in forced:
            table[place] = 0
            table[place, token_id // 32] = 1 << token_id % 32
        return table

    def _forced(self, plan: StepPlan) -> list[tuple[int, int]]:
        """(row of a draw, token) of all draws that are forced."""
        forced: list[tuple[int, int]] = []
        first = 0
        for row in plan.rows:
            if row.output is OutputKind.NONE:
                continue
            state = self._states.get(row.slot)
            if state is not None:
                forced += _forced_in(row, state, first)
            first += row.num_draft + 1
        return forced


def _forced_in(row: PlanRow, state: ThinkingState, first: int) -> list[tuple[int, int]]:
    """Those of one row; behind each guess the state is that of an output with the guess in it."""
    forced: list[tuple[int, int]] = []
    if state.forced is not None:
        forced.append((first, state.forced))
    drafts = row.token_ids[-row.num_draft :] if row.num_draft else []
    for count in range(1, len(drafts) + 1):
        token_id = state.after(drafts[:count]).forced
        if token_id is not None:
            forced.append((first + count, token_id))
    return forced
