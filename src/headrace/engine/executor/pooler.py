"""Runs whole texts through the model and pools their states. Numbers are computed in float64, given in float32.

A text's vector depends on the text alone: the model's rows do (`kernels/ops.py`), and what is done with
them here looks at one text at a time.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.core.clock import Clock
from headrace.core.errors import KernelError
from headrace.core.pooling import PoolingParams, PoolKind
from headrace.core.step import PlanText, StepPlan, StepResult, StepTimes, TextResult
from headrace.kernels.ops import Backend, KVCache
from headrace.kernels.values import StepInputs, StepLimits
from headrace.modeling.adapters.table import AdapterTable
from headrace.modeling.spec import ModelSpec
from headrace.modeling.states import BLOCK_SIZE, RecordedStates, record_states, states_layout
from headrace.modeling.weights.parameters import LoadedParameter

Float64 = NDArray[np.float64]

_NOT_FINITE = "The model produced states that are not finite."


class Pooler:
    """One model's program for texts. It is recorded at the first step that has some."""

    def __init__(
        self,
        spec: ModelSpec,
        parameters: Mapping[str, LoadedParameter],
        backend: Backend,
        *,
        max_tokens: int,
        max_texts: int,
        adapters: AdapterTable | None = None,
    ) -> None:
        """`max_tokens` and `max_texts` bound one step; `adapters` are those that texts may run with."""
        self._spec = spec
        self._parameters = parameters
        self._backend = backend
        self._limits = StepLimits(max_tokens, max_texts)
        self._adapters = adapters
        self._recorded: RecordedStates | None = None
        self._cache: KVCache | None = None

    def record(self) -> None:
        """Record the program now. Raises ModelLoadError."""
        limits = self._limits
        layout = states_layout(
            self._spec, max_tokens=limits.max_tokens, max_texts=limits.max_outputs
        )
        self._cache = cache = self._backend.create_kv_cache(layout)
        self._recorded = record_states(
            self._spec, self._parameters, self._backend, limits, cache, self._adapters
        )

    def park(self) -> None:
        """Give the memory of what was recorded back; the next texts take it anew."""
        if self._recorded is not None and self._cache is not None:
            self._recorded.program.clear()
            self._cache.clear()

    def run(self, texts: Sequence[PlanText]) -> tuple[TextResult, ...]:
        """Each text's vector, in order. Raises KernelError for texts that break the limits."""
        if self._recorded is None:
            self.record()
        recorded = self._recorded
        assert recorded is not None
        inputs = self._inputs(texts)
        recorded.program.run(inputs)
        states = recorded.program.read(recorded.states, len(inputs.token_ids))
        scores = None
        if recorded.scores is not None:
            scores = recorded.program.read(recorded.scores, len(texts))
        results = []
        starts = inputs.query_starts.tolist()
        for index, text in enumerate(texts):
            if text.pooling.kind is PoolKind.SCORES:
                if scores is None:
                    raise KernelError("This model has no classification head.")
                vector = activated(scores[index], is_wanted=text.pooling.normalize)
            else:
                vector = pooled(states[starts[index] : starts[index + 1]], text.pooling)
            results.append(_result(vector))
        return tuple(results)

    def _inputs(self, texts: Sequence[PlanText]) -> StepInputs:
        """Each text takes whole blocks of the scratch, one behind the other."""
        counts = [len(text.token_ids) for text in texts]
        starts = np.cumsum([0, *counts]).astype(np.int32)
        blocks = [-(-count // BLOCK_SIZE) for count in counts]
        table = np.full((len(texts), max(blocks)), -1, np.int32)
        first = 0
        for row, count in enumerate(blocks):
            table[row, :count] = np.arange(first, first + count)
            first += count
        return StepInputs(
            token_ids=np.concatenate([np.array(text.token_ids, np.int32) for text in texts]),
            positions=np.concatenate([self._positions(text) for text in texts]),
            query_starts=starts,
            key_starts=np.zeros(len(texts), np.int32),
            slots=np.arange(len(texts), dtype=np.int32),
            block_tables=(table,),
            output_rows=starts[:-1],
            adapters=self._adapters_of(texts, counts),
        )

    def _adapters_of(
        self, texts: Sequence[PlanText], counts: list[int]
    ) -> NDArray[np.int32] | None:
        """Each token's adapter; None when the whole step runs the base model."""
        indices = np.array([text.adapter_index for text in texts], np.int32)
        if indices.max() > (0 if self._adapters is None else self._adapters.capacity):
            raise KernelError(f"This executor has no adapter {indices.max()}.")
        return np.repeat(indices, counts) if indices.any() else None

    def _positions(self, text: PlanText) -> NDArray[np.int32]:
        """Those of the second text of a pair are in the second table, if there is one."""
        positions = np.arange(len(text.token_ids), dtype=np.int32)
        encoder, second = self._spec.encoder, text.pooling.second_start
        if second and encoder is not None and encoder.num_token_types > 1:
            positions[second:] += encoder.num_positions
        return positions


def run_texts(pooler: Pooler | None, plan: StepPlan, clock: Clock) -> StepResult:
    """A plan without sequences."""
    if not plan.texts:
        return StepResult(step_id=plan.step_id, rows=())
    if pooler is None:
        raise KernelError("This executor pools no texts.")
    began = clock.monotonic()
    texts = pooler.run(plan.texts)
    times = StepTimes(model=clock.monotonic() - began)
    return StepResult(step_id=plan.step_id, rows=(), times=times, texts=texts)


def pooled(states: NDArray[np.float32], params: PoolingParams) -> Float64:
    """One text's vector of its states [tokens, C]."""
    if params.kind is PoolKind.MEAN:
        vector: Float64 = states.sum(axis=0, dtype=np.float64) / len(states)
    else:
        vector = states[-1 if params.kind is PoolKind.LAST else 0].astype(np.float64)
    if params.dimensions:
        vector = vector[: params.dimensions]
    if params.normalize:
        # A vector of zeros has no direction; it stays as it is.
        length = np.sqrt((vector * vector).sum())
        vector = vector / length if length > 0 else vector
    return vector


def activated(scores: NDArray[np.float32], *, is_wanted: bool) -> Float64:
    """Probabilities of the labels: a sigmoid for one, softmax for several."""
    wide = scores.astype(np.float64)
    if not is_wanted:
        return wide
    if len(wide) == 1:
        with np.errstate(over="ignore"):
            probability: Float64 = 1.0 / (1.0 + np.exp(-wide))
        return probability
    weights = np.exp(wide - wide.max())
    softmax: Float64 = weights / weights.sum()
    return softmax


def _result(vector: Float64) -> TextResult:
    with np.errstate(over="ignore"):
        narrow = vector.astype("<f4")
    if not np.isfinite(narrow).all():
        return TextResult(error=_NOT_FINITE)
    return TextResult(narrow.tobytes())
