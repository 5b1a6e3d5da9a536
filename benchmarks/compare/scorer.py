"""Teacher-forced logits of a model, outside the engine: the same kernels, one step for several sequences."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.kernels.ops import Backend
from headrace.kernels.values import DType, KVLayout, StepInputs, StepLimits
from headrace.modeling.decoder import Decoder
from headrace.modeling.registry import describe
from headrace.modeling.weights.checkpoint import open_checkpoint
from headrace.modeling.weights.load import load_parameters

BLOCK_SIZE = 16
BATCH = 8


@dataclass(frozen=True)
class Forced:
    """A teacher-forced sequence: logits are wanted after each token from index `first` on."""

    token_ids: list[int]
    first: int


class Scorer:
    """Teacher-forced logits of one model on one back end, several sequences a step."""

    def __init__(
        self,
        path: Path,
        backend: Backend,
        dtype: DType,
        *,
        sequences: Sequence[Forced],
        batch: int = BATCH,
    ) -> None:
        """`sequences` are all that will ever be scored: they size the arena and the KV cache."""
        self._batch = batch
        checkpoint = open_checkpoint(path)
        spec, parameter_specs = describe(checkpoint)
        parameters = load_parameters(checkpoint, parameter_specs)
        num_groups = len(spec.kv_groups())
        longest = max(len(sequence.token_ids) for sequence in sequences)
        blocks = -(-longest // BLOCK_SIZE)
        layout = KVLayout(
            num_layers=spec.num_layers,
            num_kv_heads=spec.num_kv_heads,
            head_size=spec.head_size,
            block_size=BLOCK_SIZE,
            dtype=dtype,
            layer_groups=spec.layer_groups(),
            num_blocks=(blocks * batch,) * num_groups,
        )
        limits = StepLimits(max_tokens=longest * batch, max_outputs=longest * batch)
        model = Decoder(spec, parameters).record(backend, limits, backend.create_kv_cache(layout))
        assert model.logits is not None
        self._program, self._logits = model.program, model.logits
        table = np.arange(blocks * batch, dtype=np.int32).reshape(batch, blocks)
        self._tables = (table,) * num_groups

    def logits(self, sequences: Sequence[Forced]) -> Iterator[NDArray[np.float32]]:
        """For each sequence [tokens - first, V]; valid until the next is asked for."""
        for begin in range(0, len(sequences), self._batch):
            yield from self._step(sequences[begin : begin + self._batch])

    def _step(self, batch: Sequence[Forced]) -> Iterator[NDArray[np.float32]]:
        lengths = [len(sequence.token_ids) for sequence in batch]
        starts = np.cumsum([0, *lengths], dtype=np.int32)
        rows = [
            np.arange(start + sequence.first, start + length, dtype=np.int32)
            for start, length, sequence in zip(starts, lengths, batch, strict=False)
        ]
        inputs = StepInputs(
            token_ids=np.concatenate([s.token_ids for s in batch]).astype(np.int32),
            positions=np.concatenate([np.arange(n) for n in lengths]).astype(np.int32),
            query_starts=starts,
            key_starts=np.zeros(len(batch), np.int32),
            slots=np.arange(len(batch), dtype=np.int32),
            block_tables=self._tables,
            output_rows=np.concatenate(rows),
        )
        self._program.run(inputs)
        logits = self._program.read(self._logits, sum(map(len, rows)))
        end = 0
        for wanted in rows:
            begin, end = end, end + len(wanted)
            yield logits[begin:end]


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Row by row, in double precision."""
    values = logits.astype(np.float64)
    values -= values.max(axis=-1, keepdims=True)
    values -= np.log(np.exp(values).sum(axis=-1, keepdims=True))
    return values
