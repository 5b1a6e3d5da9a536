"""Logits become tokens: one draw per output row, then drafts are accepted by equality."""

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import KernelError
from headrace.core.events import TokenLogprobs
from headrace.core.step import OutputKind, PlanRow, RowResult, StepPlan
from headrace.engine.executor.inputs import OutputRows
from headrace.engine.executor.slots import SlotTable, no_biases
from headrace.kernels.ops import Backend
from headrace.kernels.values import SampleBatch, SampleOutput

_NOT_FINITE = "The model produced logits that are not finite."


class Sampler:
    """Draws through the back end's `sample` and writes accepted tokens into the history."""

    def __init__(self, backend: Backend, table: SlotTable) -> None:
        self._backend = backend
        self._table = table
        self._kept: SampleBatch | None = None
        self._kept_slots: list[int] = []
        self._kept_version = -1

    def run(
        self, plan: StepPlan, outputs: OutputRows, logits: NDArray[np.float32]
    ) -> tuple[RowResult, ...]:
        """Results of all rows of the plan, in order. `logits` [R, V] may be overwritten."""
        if not outputs.slots:
            return tuple(RowResult(row.slot) for row in plan.rows)
        batch = self._batch(outputs)
        batch.allowed = None
        if plan.token_masks:
            batch.allowed = unpack_masks(plan.token_masks, outputs.masks, logits.shape[1])
        drawn = self._backend.sample(logits, batch)
        results: list[RowResult] = []
        first = 0
        tokens = drawn.token_ids.tolist()
        for row in plan.rows:
            if row.output is OutputKind.NONE:
                results.append(RowResult(row.slot))
                continue
            results.append(self._accept(row, tokens, first, drawn))
            first += row.num_draft + 1
        return tuple(results)

    def _accept(
        self, row: PlanRow, tokens: list[int], first: int, drawn: SampleOutput
    ) -> RowResult:
        """Drafts that equal the draws at their positions stand, and the draw after them."""
        count = 1
        if row.num_draft:
            drafts = row.token_ids[-row.num_draft :]
            while count <= row.num_draft and drafts[count - 1] == tokens[first + count - 1]:
                count += 1
        accepted = tokens[first : first + count]
        if -1 in accepted:
            return RowResult(row.slot, error=_NOT_FINITE)
        end = row.start + row.num_tokens - row.num_draft
        # The last position of a full context has no room for its token's keys, but is still history.
        for place, token in enumerate(accepted, end):
            self._table.history[row.slot, place] = token
        logprobs: tuple[TokenLogprobs, ...] = ()
        if self._table.num_logprobs[row.slot] >= 0:
            num_top = int(self._table.num_logprobs[row.slot])
            logprobs = tuple(_logprobs(drawn, first + i, num_top) for i in range(count))
        return RowResult(row.slot, tuple(accepted), logprobs)

    def _batch(self, outputs: OutputRows) -> SampleBatch:
        """The draws of these rows. In steady decode only positions change, so the rest is kept."""
        table, batch = self._table, self._kept
        if (
            batch is None
            or outputs.slots != self._kept_slots
            or table.version != self._kept_version
        ):
            batch = self._kept = self._gather(outputs.slots)
            self._kept_slots, self._kept_version = outputs.slots, table.version
        batch.output_positions = np.array(outputs.output_positions, np.int64)
        batch.history_lengths = np.array(outputs.history_lengths, np.int32)
        if table.has_biases:
            batch.bias_starts, batch.bias_ids, batch.bias_values = table.biases(
                outputs.slots, outputs.output_positions
            )
        return batch

    def _gather(self, output_slots: list[int]) -> SampleBatch:
        """The sampling parameters of some slots, one row each; positions are filled in later."""
        table = self._table
        slots = np.array(output_slots, np.int32)
        bias_starts, bias_ids, bias_values = no_biases(len(output_slots))
        return SampleBatch(
            temperature=table.temperature[slots],
            top_k=table.top_k[slots],
            top_p=table.top_p[slots],
            min_p=table.min_p[slots],
            presence_penalty=table.presence_penalty[slots],
            frequency_penalty=table.frequency_penalty[slots],
            repetition_penalty=table.repetition_penalty[slots],
            seeds=table.seeds[slots],
            output_positions=np.zeros(len(slots), np.int64),
            num_logprobs=table.num_logprobs[slots],
            slots=slots,
            history=table.history,
            history_lengths=np.zeros(len(slots), np.int32),
            num_prompt=table.num_prompt[slots],
            bias_starts=bias_starts,
            bias_ids=bias_ids,
            bias_values=bias_values,
        )


def unpack_masks(masks: tuple[bytes, ...], rows: list[int], vocab_size: int) -> NDArray[np.uint32]:
    """[R, ceil(V / 32)]: each row's mask; every token where a row has none (-1). Raises KernelError."""
    num_words = -(-vocab_size // 32)
    table = np.full((len(masks) + 1, num_words), 0xFFFF_FFFF, np.uint32)
    for index, mask in enumerate(masks):
        if len(mask) != 4 * num_words:
            raise KernelError(f"A mask of {len(mask)} bytes is not one for {vocab_size} tokens.")
        table[index] = np.frombuffer(mask, "<u4")
    if not all(-1 <= row < len(masks) for row in rows):
        raise KernelError("A row names a mask that its plan does not have.")
    return table[rows]  # -1 is the last row, which allows all


def _logprobs(drawn: SampleOutput, row: int, num_top: int) -> TokenLogprobs:
    top = tuple(
        zip(
            drawn.top_ids[row, :num_top].tolist(),
            drawn.top_logprobs[row, :num_top].tolist(),
            strict=True,
        )
    )
    return TokenLogprobs(
        int(drawn.token_ids[row]), float(drawn.logprobs[row]), int(drawn.ranks[row]), top
    )
