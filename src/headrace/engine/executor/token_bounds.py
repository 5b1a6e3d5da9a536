"""Tokens that a request does not want: all but some, or the last ones of words that must not be said.

What is masked depends on the output so far and on nothing else.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.core.step import OutputKind, PlanRow, SequenceStart, StepPlan
from headrace.engine.executor.slots import SlotTable

NOTHING_LEFT = (
    "No token is left that 'allowed_token_ids', 'bad_words', 'logit_bias' and 'min_tokens' allow."
)


class TokenBounds:
    """Bounds by slot. Not thread-safe."""

    def __init__(self, table: SlotTable) -> None:
        self._table = table
        self._allowed: dict[int, NDArray[np.uint32]] = {}
        self._words: dict[int, tuple[tuple[int, ...], ...]] = {}

    def __bool__(self) -> bool:
        """Some slot is bounded."""
        return bool(self._allowed or self._words)

    def start(self, start: SequenceStart) -> None:
        """A sequence takes its slot."""
        self.end(start.slot)
        params = start.params
        if params.allowed_token_ids:
            self._allowed[start.slot] = _mask_of(params.allowed_token_ids)
        if params.bad_words:
            self._words[start.slot] = params.bad_words

    def end(self, slot: int) -> None:
        """The slot is free."""
        self._allowed.pop(slot, None)
        self._words.pop(slot, None)

    def has(self, slot: int) -> bool:
        """Whether this slot is bounded."""
        return slot in self._allowed or slot in self._words

    def bound(
        self, plan: StepPlan, allowed: NDArray[np.uint32] | None, num_rows: int, vocab_size: int
    ) -> NDArray[np.uint32] | None:
        """`allowed` [R, words] without what is not wanted; None where nothing is bounded."""
        rows = [(row, first) for row, first in _draws(plan) if self.has(row.slot)]
        if not rows:
            return allowed
        words = -(-vocab_size // 32) if allowed is None else allowed.shape[1]
        table: NDArray[np.uint32] = np.full((num_rows, words), 0xFFFF_FFFF, np.uint32)
        if allowed is not None:
            table[:] = allowed
        for row, first in rows:
            self._bound(row, table[first : first + row.num_draft + 1])
        return table

    def _bound(self, row: PlanRow, table: NDArray[np.uint32]) -> None:
        """The draws of one row; guesses before them are in the history."""
        mask = self._allowed.get(row.slot)
        if mask is not None:
            table[:, : len(mask)] &= mask[: table.shape[1]]
            table[:, len(mask) :] = 0
        words = self._words.get(row.slot, ())
        begin = int(self._table.num_prompt[row.slot])
        end = row.start + row.num_tokens - row.num_draft
        for draft in range(row.num_draft + 1):
            output = self._table.history[row.slot, begin : end + draft]
            for token in _last_tokens(words, output):
                table[draft, token // 32] &= np.uint32(0xFFFF_FFFF ^ (1 << token % 32))


def _draws(plan: StepPlan) -> list[tuple[PlanRow, int]]:
    """The rows that draw, each with the place of its first draw."""
    found: list[tuple[PlanRow, int]] = []
    first = 0
    for row in plan.rows:
        if row.output is not OutputKind.NONE:
            found.append((row, first))
            first += row.num_draft + 1
    return found


def _last_tokens(words: Sequence[tuple[int, ...]], output: NDArray[np.int32]) -> list[int]:
    """The tokens that would complete a word at the end of the output."""
    longest = max((len(word) for word in words), default=1) - 1
    tail = tuple(output[max(0, len(output) - longest) :].tolist()) if longest else ()
    return [
        word[-1]
        for word in words
        if len(word) - 1 <= len(tail) and tail[len(tail) - len(word) + 1 :] == word[:-1]
    ]


def _mask_of(token_ids: Sequence[int]) -> NDArray[np.uint32]:
    ids: NDArray[np.int64] = np.array(token_ids, np.int64)
    flags = np.zeros((int(ids.max()) // 32 + 1) * 32, np.uint8)
    flags[ids] = 1
    return np.packbits(flags, bitorder="little").view(np.uint32)
