"""Sampling through the C++ library."""

import numpy as np
from numpy.typing import NDArray

from headrace.kernels.cpu import _native
from headrace.kernels.values import SampleBatch, SampleOutput


def bind_sample(
    device: _native.Device, logits: NDArray[np.float32], batch: SampleBatch
) -> _native.BoundSample:
    """A `Draw`: all arrays bound once, as batches last. Rows of `logits` must be contiguous."""
    output = _allocate(len(logits), max(0, int(batch.num_logprobs.max(initial=0))))
    bound = _native.BoundSample(
        device,
        logits,
        batch.temperature,
        batch.top_k,
        batch.top_p,
        batch.min_p,
        batch.presence_penalty,
        batch.frequency_penalty,
        batch.repetition_penalty,
        batch.typical_p,
        batch.top_n_sigma,
        batch.xtc_probability,
        batch.xtc_threshold,
        batch.seeds,
        batch.output_positions,
        batch.num_logprobs,
        batch.post_sampling,
        batch.slots,
        batch.history,
        batch.history_lengths,
        batch.num_prompt,
        batch.bias_starts,
        batch.bias_ids,
        batch.bias_values,
        output.token_ids,
        output.is_finite,
        output.logprobs,
        output.ranks,
        output.top_ids,
        output.top_logprobs,
        output,
    )
    dry = batch.dry
    if dry is not None:
        bound.set_dry(
            dry.multiplier,
            dry.base,
            dry.allowed_length,
            dry.window,
            dry.sets,
            dry.breakers,
            dry.words,
        )
    return bound


def score(
    device: _native.Device,
    logits: NDArray[np.float32],
    token_ids: NDArray[np.int32],
    num_logprobs: NDArray[np.int32],
) -> SampleOutput:
    """`Backend.score`. Rows of `logits` must be contiguous."""
    output = _allocate(len(logits), max(0, int(num_logprobs.max(initial=0))))
    output.token_ids[:] = token_ids
    _native.score(
        device,
        logits,
        num_logprobs,
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
