"""What attention falls on, block by block, for sequences that keep only what matters.

A second program, recorded when the first such sequence comes, is the model with the mass of its
full-attention layers; steps without such rows run the first one. Both give the same logits.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from headrace.core.errors import KernelError
from headrace.core.step import RowResult, StepPlan
from headrace.kernels.ops import Program
from headrace.kernels.values import Buffer, StepInputs


@dataclass(frozen=True, slots=True)
class MassProgram:
    """A recorded model that also tells the mass on blocks."""

    program: Program
    logits: Buffer
    mass: Buffer | None
    """f32 [T, G * max_blocks], summed over layers; None for a model without full attention."""


class MassWatch:
    """Sums per slot. A token's share is added in order of positions, so chunks make no difference."""

    def __init__(
        self, record: Callable[[int], MassProgram] | None, max_blocks: int, num_kv_heads: int
    ) -> None:
        """`record` makes the second program for block tables of `max_blocks` entries."""
        self._record = record
        self._max_blocks = max_blocks
        self._num_kv_heads = num_kv_heads
        self._recorded: MassProgram | None = None
        self._sums: dict[int, NDArray[np.float64]] = {}

    def end(self, slot: int) -> None:
        """What the slot's sequence saw is forgotten."""
        self._sums.pop(slot, None)

    def park(self) -> None:
        """Forget the second program, with its memory; it is recorded again when it is needed."""
        self._recorded = None

    def run(self, inputs: StepInputs, num_rows: int) -> NDArray[np.float32]:
        """A step of the second program; its logits."""
        if self._recorded is None:
            if self._record is None:
                raise KernelError("This executor cannot tell what attention falls on.")
            self._recorded = self._record(self._max_blocks)
        recorded = self._recorded
        recorded.program.run(inputs)
        return recorded.program.read(recorded.logits, num_rows)

    def report(self, plan: StepPlan, rows: tuple[RowResult, ...]) -> tuple[RowResult, ...]:
        """After `run`: the same results, with the mass of the rows that report it."""
        recorded = self._recorded
        if recorded is None or recorded.mass is None:
            return rows
        block_mass = recorded.program.read(recorded.mass, plan.num_tokens)
        reported = list(rows)
        end = 0
        for place, row in enumerate(plan.rows):
            end += row.num_tokens
            if not row.num_observed:
                continue
            if row.num_draft:
                raise KernelError("A row whose attention is observed has no drafts.")
            self._observe(row.slot, block_mass[end - row.num_observed : end])
            if row.reports_mass and rows[place].error is None:
                mass = tuple(self._sums[row.slot].tolist())
                reported[place] = replace(rows[place], block_mass=mass)
        return tuple(reported)

    def _observe(self, slot: int, block_mass: NDArray[np.float32]) -> None:
        """Add tokens [n, G * max_blocks]; heads first, then tokens, one by one."""
        count, width = block_mass.shape
        by_head = block_mass.astype(np.float64).reshape(count, self._num_kv_heads, -1)
        sums = self._sums.setdefault(slot, np.zeros(width // self._num_kv_heads))
        for token in by_head.sum(axis=1):
            sums += token
