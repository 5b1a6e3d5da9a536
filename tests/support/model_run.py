"""Run a recorded model over ragged batches, the way the executor does, and collect all logits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.kernels.ops import Backend, KVCache
from headrace.kernels.values import DType, KVLayout, StepInputs, StepLimits
from headrace.modeling.decoder import Decoder
from headrace.modeling.spec import ModelSpec
from headrace.modeling.weights.parameters import LoadedParameter

BLOCK_SIZE = 16


@dataclass(frozen=True)
class Chunk:
    """`count` more tokens of one sequence."""

    sequence: int
    count: int


Step = Sequence[Chunk]


def kv_layout(
    spec: ModelSpec, *, max_tokens: int, num_sequences: int, dtype: DType = DType.F32
) -> KVLayout:
    """Room for every sequence at `max_tokens` in every group, and a few blocks more."""
    blocks = (-(-max_tokens // BLOCK_SIZE)) * num_sequences + 3
    return KVLayout(
        num_layers=spec.num_layers,
        num_kv_heads=spec.num_kv_heads,
        head_size=spec.head_size,
        block_size=BLOCK_SIZE,
        dtype=dtype,
        layer_groups=spec.layer_groups(),
        num_blocks=(blocks,) * len(spec.kv_groups()),
    )


def whole(lengths: Sequence[int]) -> list[Step]:
    """All sequences in one step."""
    return [[Chunk(i, length) for i, length in enumerate(lengths)]]


def chunked(lengths: Sequence[int], sizes: Sequence[int] = (5, 3, 7, 1)) -> list[Step]:
    """Odd chunks; the sequences start one step after another, so that steps mix."""
    steps: list[Step] = []
    done = [0] * len(lengths)
    turn = 0
    while any(d < n for d, n in zip(done, lengths, strict=True)):
        step = []
        for i, length in enumerate(lengths):
            count = min(sizes[(turn + i) % len(sizes)], length - done[i])
            if turn >= i and count > 0:
                step.append(Chunk(i, count))
                done[i] += count
        steps.append(step)
        turn += 1
    return steps


def decode(lengths: Sequence[int]) -> list[Step]:
    """One token of every sequence a step."""
    return [
        [Chunk(i, 1) for i, length in enumerate(lengths) if turn < length]
        for turn in range(max(lengths))
    ]


class ModelRun:
    """One recorded model and its cache."""

    def __init__(
        self,
        backend: Backend,
        spec: ModelSpec,
        parameters: Mapping[str, LoadedParameter],
        *,
        max_tokens: int,
        num_sequences: int,
        kv_dtype: DType = DType.F32,
    ) -> None:
        layout = kv_layout(spec, max_tokens=max_tokens, num_sequences=num_sequences, dtype=kv_dtype)
        self.kv_cache: KVCache = backend.create_kv_cache(layout)
        limit = max_tokens * num_sequences
        self._model = Decoder(spec, parameters).record(
            backend, StepLimits(limit, limit), self.kv_cache
        )
        self._windows = [group.window for group in spec.kv_groups()]
        self._layout = layout
        self._max_blocks = -(-max_tokens // BLOCK_SIZE)
        self._num_sequences = num_sequences

    def logits(
        self,
        sequences: Sequence[NDArray[np.int32]],
        steps: Sequence[Step],
        *,
        last_only: bool = False,
    ) -> list[NDArray[np.float32]]:
        """[len(sequence), V] for each sequence, whichever way the steps cut them.

        With `last_only`, [1, V]: as in serving, no logits are asked for before a prompt's last token.
        """
        assert len(sequences) <= self._num_sequences
        done = [0] * len(sequences)
        found: list[list[NDArray[np.float32]]] = [[] for _ in sequences]
        tables = self._block_tables(len(sequences))
        for step in steps:
            inputs = self._inputs(sequences, done, step, tables)
            ends = [done[c.sequence] + c.count == len(sequences[c.sequence]) for c in step]
            if last_only:
                inputs.output_rows = (inputs.query_starts[1:] - 1)[ends]
            self._model.program.run(inputs)
            assert self._model.logits is not None
            rows = self._model.program.read(self._model.logits, len(inputs.output_rows)).copy()
            first = 0
            for chunk, is_end in zip(step, ends, strict=True):
                count = int(is_end) if last_only else chunk.count
                found[chunk.sequence].append(rows[first : first + count])
                first += count
                done[chunk.sequence] += chunk.count
            self._give_back(tables, done)
        return [np.concatenate(parts) for parts in found]

    def _block_tables(self, count: int) -> list[NDArray[np.int32]]:
        """Scattered blocks, other ones in each group; sequence i lives in slot count - 1 - i."""
        tables = []
        for group, num_blocks in enumerate(self._layout.num_blocks):
            order = np.random.default_rng(group).permutation(num_blocks).astype(np.int32)
            tables.append(order[: count * self._max_blocks].reshape(count, self._max_blocks))
        return tables

    def _give_back(self, tables: list[NDArray[np.int32]], done: Sequence[int]) -> None:
        """Blocks wholly behind the window of the next token are gone, as the ledger does it."""
        for table, window in zip(tables, self._windows, strict=True):
            for i, tokens in enumerate(done):
                if window and tokens >= window:
                    table[len(done) - 1 - i, : (tokens - window + 1) // BLOCK_SIZE] = -1

    def _inputs(
        self,
        sequences: Sequence[NDArray[np.int32]],
        done: Sequence[int],
        step: Step,
        tables: Sequence[NDArray[np.int32]],
    ) -> StepInputs:
        counts = [chunk.count for chunk in step]
        ranges = [
            np.arange(done[c.sequence], done[c.sequence] + c.count, dtype=np.int32) for c in step
        ]
        tokens = [sequences[c.sequence][r] for c, r in zip(step, ranges, strict=True)]
        return StepInputs(
            token_ids=np.concatenate(tokens).astype(np.int32),
            positions=np.concatenate(ranges),
            query_starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
            key_starts=np.array([done[c.sequence] for c in step], np.int32),
            slots=np.array([len(sequences) - 1 - c.sequence for c in step], np.int32),
            block_tables=tuple(table.copy() for table in tables),
            output_rows=np.arange(sum(counts), dtype=np.int32),
        )
