"""Sample batches with defaults, one row's settings at a time."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.sampling import Dry, SamplingParams
from headrace.core.step import SequenceStart
from headrace.engine.executor.dry import DrySlots
from headrace.kernels.values import DryBatch, SampleBatch

DEFAULTS = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "typical_p": 1.0,
    "top_n_sigma": 0.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "seeds": 1,
    "output_positions": 0,
    "num_logprobs": -1,
    "post_sampling": False,
}
DTYPES = {
    "top_k": np.int32,
    "seeds": np.uint64,
    "output_positions": np.int64,
    "num_logprobs": np.int32,
    "post_sampling": np.bool_,
}


def sample_batch(
    rows: Sequence[dict[str, Any]], allowed: NDArray[np.uint32] | None = None
) -> SampleBatch:
    """A batch from one dict of settings per row; beside the fields above: prompt, output, bias."""
    columns = {
        name: np.array([row.get(name, default) for row in rows], DTYPES.get(name, np.float32))
        for name, default in DEFAULTS.items()
    }
    histories = [[*row.get("prompt", ()), *row.get("output", ())] for row in rows]
    history = np.full((len(rows), max([1, *map(len, histories)])), -1, np.int32)
    for slot, tokens in enumerate(histories):
        history[slot, : len(tokens)] = tokens
    biases = [row.get("bias", {}) for row in rows]
    return SampleBatch(
        **columns,
        slots=np.arange(len(rows), dtype=np.int32),
        history=history,
        history_lengths=np.array([len(tokens) for tokens in histories], np.int32),
        num_prompt=np.array([len(row.get("prompt", ())) for row in rows], np.int32),
        bias_starts=np.cumsum([0, *map(len, biases)]).astype(np.int32),
        bias_ids=np.array([token for bias in biases for token in bias], np.int32),
        bias_values=np.array([v for bias in biases for v in bias.values()], np.float32),
        allowed=allowed,
    )


def dry_batch(settings: Sequence[Dry | None], vocab_size: int) -> DryBatch | None:
    """The penalties for repetition of a batch with these rows."""
    slots = DrySlots()
    for slot, dry in enumerate(settings):
        params = SamplingParams(dry=dry)
        slots.start(SequenceStart(slot, params, (), [], 0, 0))
    return slots.gather(np.arange(len(settings), dtype=np.int32), vocab_size)


def allow(num_rows: int, vocab_size: int, tokens: Sequence[Sequence[int]]) -> NDArray[np.uint32]:
    """A bitmask that allows exactly these tokens per row."""
    flags = np.zeros((num_rows, -(-vocab_size // 32) * 32), np.uint8)
    for row, ids in enumerate(tokens):
        flags[row, list(ids)] = 1
    return np.packbits(flags, axis=1, bitorder="little").view(np.uint32)
