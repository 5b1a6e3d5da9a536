"""A plan becomes the ragged arrays of one step. The only place that sees prefill and decode rows alike."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.core.step import OutputKind, PlanRow, StepPlan
from headrace.engine.executor.slots import SlotTable
from headrace.kernels.values import StepInputs


@dataclass(slots=True)
class OutputRows:
    """Which logits rows the step makes, in plan order; a row with k drafts makes k + 1 of them."""

    slots: list[int]
    history_lengths: list[int]
    """Tokens before the one that this row draws."""
    output_positions: list[int]
    masks: list[int]
    """Index into the plan's masks, -1 without one; empty when the plan has none."""


class InputBuilder:
    """Builds `StepInputs` in buffers that it owns; the views are valid until the next call."""

    def __init__(self, table: SlotTable, *, max_tokens: int) -> None:
        self._table = table
        self._token_ids: NDArray[np.int32] = np.zeros(max_tokens, np.int32)
        self._positions: NDArray[np.int32] = np.zeros(max_tokens, np.int32)
        self._count: NDArray[np.int32] = np.arange(max_tokens + 1, dtype=np.int32)

    def build(self, plan: StepPlan) -> tuple[StepInputs, OutputRows]:
        """Arrays of the plan's rows, and what its output rows are."""
        rows = plan.rows
        outputs, output_rows = _output_rows(plan)
        starts = np.array([row.start for row in rows], np.int32)
        slots = np.array([row.slot for row in rows], np.int32)
        num_tokens = len(rows)
        if plan.num_tokens == num_tokens:
            query_starts = self._count[: num_tokens + 1]
            self._fill_single(starts, slots)
        else:
            query_starts, num_tokens = self._fill_ragged(rows)
        inputs = StepInputs(
            token_ids=self._token_ids[:num_tokens],
            positions=self._positions[:num_tokens],
            query_starts=query_starts,
            key_starts=starts,
            slots=slots,
            block_tables=self._table.block_tables,
            output_rows=np.array(output_rows, np.int32),
            adapters=self._adapters_of(slots, query_starts) if self._table.has_adapters else None,
        )
        return inputs, outputs

    def _adapters_of(
        self, slots: NDArray[np.int32], query_starts: NDArray[np.int32]
    ) -> NDArray[np.int32] | None:
        """Each token's adapter; None when the whole step runs the base model."""
        adapters = self._table.adapters[slots]
        return np.repeat(adapters, np.diff(query_starts)) if adapters.any() else None

    def _fill_single(self, starts: NDArray[np.int32], slots: NDArray[np.int32]) -> None:
        """Every row is one token. Each is in the history: known before, or written when sampled."""
        count = len(starts)
        self._token_ids[:count] = self._table.history[slots, starts]
        self._positions[:count] = starts

    def _fill_ragged(self, rows: tuple[PlanRow, ...]) -> tuple[NDArray[np.int32], int]:
        query_starts = np.zeros(len(rows) + 1, np.int32)
        end = 0
        history = self._table.history
        for index, row in enumerate(rows):
            begin, end = end, end + row.num_tokens
            if row.token_ids:
                # Drafts are not history yet; the draws after them must see them there.
                history[row.slot, row.start : row.start + row.num_tokens] = row.token_ids
            self._token_ids[begin:end] = history[row.slot, row.start : row.start + row.num_tokens]
            self._positions[begin:end] = self._count[: row.num_tokens]
            self._positions[begin:end] += row.start
            query_starts[index + 1] = end
        return query_starts, end


def _output_rows(plan: StepPlan) -> tuple[OutputRows, list[int]]:
    outputs = OutputRows([], [], [], [])
    token_rows: list[int] = []
    end = 0
    for row in plan.rows:
        end += row.num_tokens
        if row.output is OutputKind.NONE:
            continue
        length = row.start + row.num_tokens - row.num_draft
        for draft in range(row.num_draft + 1):
            outputs.slots.append(row.slot)
            outputs.history_lengths.append(length + draft)
            outputs.output_positions.append(row.first_output + draft)
            token_rows.append(end - 1 - row.num_draft + draft)
        if plan.token_masks:
            outputs.masks += row.masks or (-1,) * (row.num_draft + 1)
    return outputs, token_rows
