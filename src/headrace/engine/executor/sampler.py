"""Logits become tokens: one draw per output row, then drafts are accepted by equality."""

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from headrace.core.events import TokenLogprobs
from headrace.core.step import OutputKind, PlanRow, RowResult, StepPlan
from headrace.engine.executor.inputs import OutputRows
from headrace.engine.executor.matching import Matchers
from headrace.engine.executor.prompt_scores import PromptScorer
from headrace.engine.executor.slots import SlotTable, no_biases
from headrace.engine.executor.token_bounds import NOTHING_LEFT, TokenBounds
from headrace.kernels.bound import Draw
from headrace.kernels.ops import Backend
from headrace.kernels.values import SampleBatch, SampleOutput

_NOT_FINITE = "The model produced logits that are not finite."


class Sampler:
    """Draws through the back end's `sample` and writes accepted tokens into the history.

    What was gathered and bound for some output rows is kept as long as the same object comes back: then
    only positions have changed, in place.
    """

    def __init__(
        self, backend: Backend, table: SlotTable, matchers: Matchers | None = None
    ) -> None:
        self._backend = backend
        self._table = table
        self._matchers = Matchers(None) if matchers is None else matchers
        self._scorer = PromptScorer(backend, table)
        self.bounds = TokenBounds(table)
        """Told by whoever starts and ends sequences."""
        self._history = table.history.data
        self._num_logprobs = table.num_logprobs.data
        self._draw: Draw | None = None
        self._outputs: OutputRows | None = None
        self._logits: NDArray[np.float32] | None = None
        self._version = -1
        self._is_plain = False
        """As long as nobody takes or leaves a slot: every row of what is bound wants its token alone."""

    def run(
        self, plan: StepPlan, outputs: OutputRows, logits: NDArray[np.float32]
    ) -> tuple[RowResult, ...]:
        """Results of all rows of the plan, in order. `logits` [R, V] may be overwritten."""
        if (
            outputs is self._outputs
            and logits is self._logits
            and self._is_plain
            and self._version == self._table.version
        ):
            return self._draw_plain(plan)
        if outputs.scored is not None:
            # The rows that are drawn from come first.
            drawn = self._draw_rows(plan, outputs, logits[: outputs.count])
            scores = self._scorer.run(outputs.scored, logits[outputs.count :])
            return tuple(map(_with_scores, drawn, scores))
        return self._draw_rows(plan, outputs, logits)

    def _draw_rows(
        self, plan: StepPlan, outputs: OutputRows, logits: NDArray[np.float32]
    ) -> tuple[RowResult, ...]:
        if outputs.count == 0:
            return tuple([RowResult(row.slot) for row in plan.rows])
        draw, table = self._draw, self._table
        if (
            draw is None
            or outputs is not self._outputs
            or logits is not self._logits
            or table.version != self._version
            or table.has_biases
        ):
            draw = self._draw = self._backend.bind_sample(
                logits, self._gather(outputs, logits.shape[1])
            )
            self._outputs, self._logits, self._version = outputs, logits, table.version
            self._is_plain = len(plan.rows) == outputs.count and self._wants_tokens_alone(outputs)
        allowed = None
        if self._matchers:
            allowed = self._matchers.masks(plan, outputs.count, logits.shape[1])
        if self.bounds:
            allowed = self.bounds.bound(plan, allowed, outputs.count, logits.shape[1])
        if table.thinking:
            allowed = table.thinking.bound(plan, allowed, outputs.count, logits.shape[1])
        tokens = draw(allowed)
        results: list[RowResult] = []
        first = 0
        for row in plan.rows:
            if row.output is OutputKind.NONE:
                results.append(RowResult(row.slot))
                continue
            results.append(self._accept(row, tokens, first, draw))
            first += row.num_draft + 1
        return tuple(results)

    def _wants_tokens_alone(self, outputs: OutputRows) -> bool:
        """No mask, no bias and no log-probabilities."""
        is_free = not (
            self._matchers or self.bounds or self._table.thinking or self._table.has_biases
        )
        return is_free and bool((self._table.num_logprobs[outputs.slots] < 0).all())

    def _draw_plain(self, plan: StepPlan) -> tuple[RowResult, ...]:
        """What `_draw_rows` gives where each row draws one token and wants nothing else.

        A path of its own because it is most steps: behind a model that empties the caches, what it costs
        is how much code and data it touches.
        """
        assert self._draw is not None
        history = self._history
        results: list[RowResult] = []
        for row, token in zip(plan.rows, self._draw(None), strict=True):
            if token < 0:
                results.append(RowResult(row.slot, error=_NOT_FINITE))
                continue
            history[row.slot, row.start + 1] = token
            results.append(RowResult(row.slot, (token,)))
        return tuple(results)

    def _accept(self, row: PlanRow, tokens: list[int], first: int, draw: Draw) -> RowResult:
        """Drafts that equal the draws at their positions stand, and the draw after them."""
        slot, count = row.slot, 1
        if row.num_draft:
            drafts = row.token_ids[-row.num_draft :]
            while count <= row.num_draft and drafts[count - 1] == tokens[first + count - 1]:
                count += 1
        accepted = tokens[first : first + count]
        is_bounded = self._matchers.has(slot)
        if is_bounded:
            dead_end = self._matchers.dead_end(slot)
            if dead_end is not None:
                return RowResult(slot, dead_end=dead_end)
            accepted = self._matchers.cut(slot, accepted)
            count = len(accepted)
        if -1 in accepted:
            if self.bounds.has(slot):
                return RowResult(slot, dead_end=NOTHING_LEFT)
            return RowResult(slot, error=_NOT_FINITE)
        place = row.start + row.num_tokens - row.num_draft
        # The last position of a full context has no room for its token's keys, but is still history.
        for token in accepted:
            self._history[slot, place] = token
            place += 1
        if self._table.thinking:
            self._table.thinking.accept(slot, accepted)
        num_top = self._num_logprobs[slot]
        drawn = draw.output if num_top >= 0 else None
        logprobs: tuple[TokenLogprobs, ...] = ()
        if drawn is not None:
            logprobs = tuple([_logprobs(drawn, first + i, num_top) for i in range(count)])
        is_complete = is_bounded and self._matchers.accept(slot, accepted)
        return RowResult(slot, tuple(accepted), logprobs, is_complete=is_complete)

    def _gather(self, outputs: OutputRows, vocab_size: int) -> SampleBatch:
        """The sampling parameters of some slots, one row each, and the positions themselves."""
        table, slots = self._table, outputs.slots
        starts, ids, values = (
            table.biases(slots.tolist(), outputs.output_positions.tolist())
            if table.has_biases
            else no_biases(len(slots))
        )
        return SampleBatch(
            temperature=table.temperature[slots],
            top_k=table.top_k[slots],
            top_p=table.top_p[slots],
            min_p=table.min_p[slots],
            presence_penalty=table.presence_penalty[slots],
            frequency_penalty=table.frequency_penalty[slots],
            repetition_penalty=table.repetition_penalty[slots],
            typical_p=table.typical_p[slots],
            top_n_sigma=table.top_n_sigma[slots],
            xtc_probability=table.xtc_probability[slots],
            xtc_threshold=table.xtc_threshold[slots],
            seeds=table.seeds[slots],
            output_positions=outputs.output_positions,
            num_logprobs=table.num_logprobs[slots],
            post_sampling=table.post_sampling[slots],
            slots=slots,
            history=table.history,
            history_lengths=outputs.history_lengths,
            num_prompt=table.num_prompt[slots],
            bias_starts=starts,
            bias_ids=ids,
            bias_values=values,
            dry=table.dry.gather(slots, vocab_size),
        )


def _with_scores(row: RowResult, scores: tuple[TokenLogprobs, ...] | None) -> RowResult:
    if scores is None:
        return RowResult(row.slot, error=_NOT_FINITE)
    return replace(row, prompt_logprobs=scores) if scores else row


def _logprobs(drawn: SampleOutput, row: int, num_top: int) -> TokenLogprobs:
    best = zip(
        drawn.top_ids[row, :num_top].tolist(),
        drawn.top_logprobs[row, :num_top].tolist(),
        strict=True,
    )
    top = tuple([pair for pair in best if pair[0] >= 0])  # there may be fewer than were asked for
    return TokenLogprobs(
        int(drawn.token_ids[row]), float(drawn.logprobs[row]), int(drawn.ranks[row]), top
    )
