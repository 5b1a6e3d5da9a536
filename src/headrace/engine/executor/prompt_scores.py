"""Log-probabilities of prompt tokens: which logits rows tell of them, and what they tell.

A position's logits say how likely the token after it was, so a row reports on the tokens behind its scored
positions. Their logits rows come behind those that are drawn from.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import KernelError
from headrace.core.events import TokenLogprobs
from headrace.core.step import StepPlan
from headrace.engine.executor.slots import SlotTable
from headrace.kernels.ops import Backend
from headrace.kernels.values import SampleOutput


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """The scored positions of a step, all rows of the plan in order."""

    counts: list[int]
    """By row of the plan."""
    token_rows: list[int]
    """Which of the step's tokens they are."""
    slots: NDArray[np.int32]
    targets: NDArray[np.int32]
    """Positions of the tokens that are reported on."""


def scored_rows(plan: StepPlan) -> ScoredRows | None:
    """None when nothing is scored. Raises KernelError for more positions than a row has."""
    counts = [row.num_scored for row in plan.rows]
    if not any(counts):
        return None
    token_rows: list[int] = []
    slots: list[int] = []
    targets: list[int] = []
    first = 0
    for row in plan.rows:
        if not 0 <= row.num_scored <= row.num_tokens:
            raise KernelError("A row scores more positions than it has.")
        token_rows += range(first, first + row.num_scored)
        targets += range(row.start + 1, row.start + 1 + row.num_scored)
        slots += [row.slot] * row.num_scored
        first += row.num_tokens
    return ScoredRows(counts, token_rows, np.array(slots, np.int32), np.array(targets, np.int32))


class PromptScorer:
    """Reports on prompt tokens through the back end's `score`."""

    def __init__(self, backend: Backend, table: SlotTable) -> None:
        self._backend = backend
        self._table = table

    def run(
        self, scored: ScoredRows, logits: NDArray[np.float32]
    ) -> list[tuple[TokenLogprobs, ...] | None]:
        """By row of the plan; None where the logits [scored positions, V] are not finite."""
        table = self._table
        wanted = table.num_prompt_logprobs[scored.slots]
        tokens = table.history[scored.slots, scored.targets]
        reported = self._backend.score(logits, tokens, wanted)
        positions = token_logprobs(reported, wanted.tolist())
        is_finite = reported.is_finite.tolist()
        results: list[tuple[TokenLogprobs, ...] | None] = []
        first = 0
        for count in scored.counts:
            end = first + count
            results.append(tuple(positions[first:end]) if all(is_finite[first:end]) else None)
            first = end
        return results


def token_logprobs(reported: SampleOutput, wanted: list[int]) -> list[TokenLogprobs]:
    """One a row, with as many alternatives as its entry of `wanted` says."""
    return [
        TokenLogprobs(token, logprob, rank, tuple(zip(ids[:count], values[:count], strict=True)))
        for token, logprob, rank, ids, values, count in zip(
            reported.token_ids.tolist(),
            reported.logprobs.tolist(),
            reported.ranks.tolist(),
            reported.top_ids.tolist(),
            reported.top_logprobs.tolist(),
            wanted,
            strict=True,
        )
    ]
