"""A plan becomes the ragged arrays of one step. The only place that sees prefill and decode rows alike."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.core.step import OutputKind, PlanRow, StepPlan
from headrace.engine.executor.prompt_scores import ScoredRows, scored_rows
from headrace.engine.executor.slots import SlotTable
from headrace.kernels.values import StepInputs


@dataclass(slots=True)
class OutputRows:
    """Which logits rows the step makes, in plan order; a row with k drafts makes k + 1 of them."""

    count: int
    slots: NDArray[np.int32]
    history_lengths: NDArray[np.int32]
    """Tokens before the one that this row draws."""
    output_positions: NDArray[np.int64]
    scored: ScoredRows | None = None
    """Positions whose logits follow those of the `count` rows."""

    @property
    def num_logits(self) -> int:
        """Rows of logits that the step makes."""
        return self.count if self.scored is None else self.count + len(self.scored.targets)


class InputBuilder:
    """Builds `StepInputs` in buffers that it owns; the views are valid until the next call.

    While the same sequences decode, one token each, the same two objects come back, filled in place: what
    was bound to them stays bound.
    """

    def __init__(self, table: SlotTable, *, max_tokens: int) -> None:
        self._table = table
        self._token_ids: NDArray[np.int32] = np.zeros(max_tokens, np.int32)
        self._positions: NDArray[np.int32] = np.zeros(max_tokens, np.int32)
        self._count: NDArray[np.int32] = np.arange(max_tokens + 1, dtype=np.int32)
        # Scalars through memoryviews: behind a model that empties the caches, an array's own access
        # costs ten times as much.
        self._history = table.history.data
        self._decode: _Decode | None = None

    def build(self, plan: StepPlan) -> tuple[StepInputs, OutputRows]:
        """Arrays of the plan's rows, and what its output rows are."""
        decode = self._decode
        has_adapters, embeddings = self._table.has_adapters, self._table.embeddings
        if (
            decode is not None
            # Slots that look the same may have been taken over by sequences with other adapters, or whose
            # prompt ends with a vector.
            and (not (has_adapters or embeddings) or decode.version == self._table.version)
            and decode.advance(plan, self._history)
        ):
            return decode.inputs, decode.outputs
        self._decode = None
        rows = plan.rows
        outputs, output_rows = _output_rows(plan)
        starts = np.array([row.start for row in rows], np.int32)
        slots = np.array([row.slot for row in rows], np.int32)
        num_tokens = len(rows)
        is_single = plan.num_tokens == num_tokens
        if is_single:
            query_starts = self._count[: num_tokens + 1]
            self._fill_single(rows, starts, slots)
        else:
            query_starts, num_tokens = self._fill_ragged(rows)
        given = embeddings.place(rows, self._token_ids) if embeddings else None
        inputs = StepInputs(
            token_ids=self._token_ids[:num_tokens],
            positions=self._positions[:num_tokens],
            query_starts=query_starts,
            key_starts=starts,
            slots=slots,
            block_tables=self._table.block_tables,
            output_rows=output_rows,
            adapters=self._adapters_of(slots, query_starts) if has_adapters else None,
            embeddings=given,
        )
        # Not where a prompt is reported on: which positions are is no part of what is filled in anew.
        if is_single and outputs.scored is None and outputs.count == len(rows):
            self._decode = _Decode(rows, inputs, outputs, self._table.version)
        return inputs, outputs

    def _adapters_of(
        self, slots: NDArray[np.int32], query_starts: NDArray[np.int32]
    ) -> NDArray[np.int32] | None:
        """Each token's adapter; None when the whole step runs the base model."""
        adapters = self._table.adapters[slots]
        return np.repeat(adapters, np.diff(query_starts)) if adapters.any() else None

    def _fill_single(
        self, rows: tuple[PlanRow, ...], starts: NDArray[np.int32], slots: NDArray[np.int32]
    ) -> None:
        """Every row is one token: the one it names (a beam goes on with another than was sampled), or the
        one that was sampled.
        """
        count = len(starts)
        for row in rows:
            if row.token_ids:
                self._history[row.slot, row.start] = row.token_ids[0]
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


class _Decode:
    """The arrays of a step in which some sequences run one token each and draw one."""

    __slots__ = (
        "_lengths",
        "_outputs",
        "_positions",
        "_slots",
        "_starts",
        "_tokens",
        "inputs",
        "outputs",
        "version",
    )

    def __init__(
        self, rows: tuple[PlanRow, ...], inputs: StepInputs, outputs: OutputRows, version: int
    ) -> None:
        self.version = version
        self.inputs = inputs
        self.outputs = outputs
        self._slots = [row.slot for row in rows]
        self._tokens = inputs.token_ids.data
        self._positions = inputs.positions.data
        self._starts = inputs.key_starts.data
        self._lengths = outputs.history_lengths.data
        self._outputs = outputs.output_positions.data

    def advance(self, plan: StepPlan, history: memoryview) -> bool:
        """Fill in the next token of each sequence. False, and nothing is valid, when the plan is another."""
        rows, slots = plan.rows, self._slots
        if len(rows) != len(slots):
            return False
        tokens, positions, starts = self._tokens, self._positions, self._starts
        lengths, outputs = self._lengths, self._outputs
        for index, row in enumerate(rows):
            slot, start = row.slot, row.start
            if slot != slots[index] or row.num_tokens != 1 or row.output is not OutputKind.SAMPLE:
                return False
            ids = row.token_ids
            if ids:
                tokens[index] = history[slot, start] = ids[0]
            else:
                tokens[index] = history[slot, start]
            positions[index] = starts[index] = start
            lengths[index] = start + 1
            outputs[index] = row.first_output
        return True


def _output_rows(plan: StepPlan) -> tuple[OutputRows, NDArray[np.int32]]:
    slots: list[int] = []
    lengths: list[int] = []
    positions: list[int] = []
    token_rows: list[int] = []
    end = 0
    for row in plan.rows:
        end += row.num_tokens
        if row.output is OutputKind.NONE:
            continue
        length = row.start + row.num_tokens - row.num_draft
        for draft in range(row.num_draft + 1):
            slots.append(row.slot)
            lengths.append(length + draft)
            positions.append(row.first_output + draft)
            token_rows.append(end - 1 - row.num_draft + draft)
    scored = scored_rows(plan)
    if scored is not None:
        token_rows += scored.token_rows
    outputs = OutputRows(
        len(slots),
        np.array(slots, np.int32),
        np.array(lengths, np.int32),
        np.array(positions, np.int64),
        scored,
    )
    return outputs, np.array(token_rows, np.int32)
