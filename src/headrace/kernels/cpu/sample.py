"""Sampling through the C++ library."""

import numpy as np
from numpy.typing import NDArray

from headrace.kernels.cpu import _native
from headrace.kernels.values import SampleBatch, SampleOutput


class CpuSampler:
    """Draws through one device. How many alternatives a batch asks for is kept, as batches last."""

    def __init__(self, device: _native.Device) -> None:
        self._device = device
        self._num_logprobs: NDArray[np.int32] | None = None
        self._num_top = 0

    def draw(self, logits: NDArray[np.float32], batch: SampleBatch) -> SampleOutput:
        """One token per row of `logits` [R, V], which is used as scratch; rows must be contiguous."""
        if batch.num_logprobs is not self._num_logprobs:
            self._num_logprobs = batch.num_logprobs
            self._num_top = max(0, int(batch.num_logprobs.max(initial=0)))
        output = _allocate(len(logits), self._num_top)
        _native.sample(
            self._device,
            logits,
            batch.temperature,
            batch.top_k,
            batch.top_p,
            batch.min_p,
            batch.presence_penalty,
            batch.frequency_penalty,
            batch.repetition_penalty,
            batch.seeds,
            batch.output_positions,
            batch.num_logprobs,
            batch.slots,
            batch.history,
            batch.history_lengths,
            batch.num_prompt,
            batch.bias_starts,
            batch.bias_ids,
            batch.bias_values,
            batch.allowed,
            output.token_ids,
            output.is_finite,
            output.logprobs,
            output.ranks,
            output.top_ids,
            output.top_logprobs,
        )
        return output


def _allocate(num_rows: int, num_top: int) -> SampleOutput:
    return SampleOutput(
        token_ids=np.empty(num_rows, dtype=np.int32),
        is_finite=np.empty(num_rows, dtype=np.bool_),
        logprobs=np.empty(num_rows, dtype=np.float32),
        ranks=np.empty(num_rows, dtype=np.int32),
        top_ids=np.empty((num_rows, num_top), dtype=np.int32),
        top_logprobs=np.empty((num_rows, num_top), dtype=np.float32),
    )
