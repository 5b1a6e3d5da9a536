"""A back end without arithmetic: it checks shapes while a model is recorded, and keeps what it saw.

For tests that run every family in microseconds, and for sizing an arena before any weight is read.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import KernelError
from headrace.kernels.bound import Draw, SampleAgain, run_and_read
from headrace.kernels.formats import LowRank, PackedWeight, WeightFormat
from headrace.kernels.ops import KVCache, Recorder
from headrace.kernels.values import (
    Buffer,
    DType,
    KVLayout,
    Rows,
    SampleBatch,
    SampleOutput,
    StepInputs,
    StepLimits,
)

#: Bytes of one element; a Q8 row also carries a float32 scale per 32 elements. INT8 and INT16 are of no buffer.
ELEMENT_BYTES = {DType.F32: 4.0, DType.BF16: 2.0, DType.F16: 2.0, DType.Q8: 1.0 + 4.0 / 32.0}


@dataclass(frozen=True, slots=True)
class WeightShape:
    """Stands for a weight."""

    format: WeightFormat
    num_outputs: int  # N
    num_inputs: int  # K


@dataclass(frozen=True, slots=True)
class AdapterShape:
    """Stands for the adapters of a linear."""

    num_outputs: int  # N
    num_inputs: int  # K

    def set(self, index: int, entry: LowRank | None) -> None:
        """Nothing is kept."""


@dataclass(frozen=True, slots=True)
class RecordedOp:
    """One op of a recorded model: its name, and its buffers, handles and plain values by name."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(slots=True)
class ShapeKVCache:
    """A layout, and block ids that are checked."""

    layout: KVLayout

    def clear(self) -> None:
        """There is nothing to give back."""

    def copy_block(self, group: int, source: int, target: int) -> None:
        """Check the ids."""
        self._check(group, source, target)

    def export_block(self, group: int, block: int) -> NDArray[np.float32]:
        """Zeros in the canonical shape."""
        self._check(group, block)
        return np.zeros(self._block_shape(group), np.float32)

    def import_block(self, group: int, block: int, data: NDArray[np.float32]) -> None:
        """Check ids and shape."""
        self._check(group, block)
        expected = self._block_shape(group)
        if data.shape != expected:
            raise KernelError(f"import_block: data has shape {data.shape}, {expected} is needed.")

    def _block_shape(self, group: int) -> tuple[int, int, int, int, int]:
        layout = self.layout
        num_layers = layout.layer_groups.count(group)
        return (2, num_layers, layout.num_kv_heads, layout.block_size, layout.head_size)

    def _check(self, group: int, *blocks: int) -> None:
        counts = self.layout.num_blocks
        if not 0 <= group < len(counts):
            raise KernelError(f"KV cache: there is no KV group {group}.")
        for block in blocks:
            if not 0 <= block < counts[group]:
                raise KernelError(f"KV cache: block {block} is out of range in group {group}.")


@dataclass(slots=True)
class ShapeProgram:
    """What was recorded. Running it does nothing; every buffer reads as zeros."""

    limits: StepLimits
    ops: tuple[RecordedOp, ...]
    buffers: tuple[Buffer, ...]
    num_runs: int = 0

    def clear(self) -> None:
        """There is nothing to give back."""

    @property
    def arena_bytes(self) -> int:
        """Bytes that the buffers take at the largest step."""
        rows = {Rows.TOKENS: self.limits.max_tokens, Rows.OUTPUTS: self.limits.max_outputs}
        return int(sum(rows[b.rows] * b.width * ELEMENT_BYTES[b.dtype] for b in self.buffers))

    def run(self, inputs: StepInputs) -> None:
        """Check the limits."""
        if len(inputs.token_ids) > self.limits.max_tokens:
            raise KernelError(
                f"run: {len(inputs.token_ids)} tokens exceed {self.limits.max_tokens}."
            )
        self.num_runs += 1

    def bind(
        self, inputs: StepInputs, buffer: Buffer, num_rows: int
    ) -> Callable[[], NDArray[np.float32]]:
        """`run`, then `read`."""
        return run_and_read(self, inputs, buffer, num_rows)

    def read(self, buffer: Buffer, num_rows: int) -> NDArray[np.float32]:
        """Zeros."""
        return np.zeros((num_rows, buffer.width), np.float32)


@dataclass(slots=True)
class ShapeRecorder(Recorder):
    """Keeps ops and buffers."""

    backend: "ShapeBackend"
    limits: StepLimits
    kv_cache: ShapeKVCache
    ops: list[RecordedOp] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)

    def buffer(self, rows: Rows, width: int, dtype: DType = DType.F32) -> Buffer:
        self._require(width > 0, "buffer", "the width is at least 1")
        made = Buffer(len(self.buffers), rows, width, dtype)
        self.buffers.append(made)
        return made

    def emit(self, op: str, **arguments: Any) -> None:
        layer = arguments.get("layer", 0)
        self._require(
            0 <= layer < self.kv_cache.layout.num_layers, op, f"the KV cache has no layer {layer}"
        )
        for value in arguments.values():
            if isinstance(value, Buffer):
                is_ours = value.index < len(self.buffers) and self.buffers[value.index] == value
                self._require(is_ours, op, "a buffer of another recorder was given")
        self.ops.append(RecordedOp(op, arguments))

    def finish(self) -> ShapeProgram:
        return ShapeProgram(self.limits, tuple(self.ops), tuple(self.buffers))

    def weight_shape(self, weight: Any) -> tuple[WeightFormat, int, int]:
        return weight.format, weight.num_outputs, weight.num_inputs

    def adapters_shape(self, adapters: Any) -> tuple[int, int]:
        return adapters.num_outputs, adapters.num_inputs

    def vector_size(self, vector: Any) -> int:
        return int(vector)

    def operand_dtype(self, weight: WeightFormat) -> DType:
        return self.backend.operand_dtype(weight)

    def _kv_shape(self) -> tuple[int, int]:
        return self.kv_cache.layout.head_size, self.kv_cache.layout.num_kv_heads


class ShapeBackend:
    """Handles are shapes: a weight is its `WeightShape`, a vector its length."""

    name = "shapes"
    isa = "none"
    num_threads = 1

    def __init__(self, operands: Callable[[WeightFormat], DType] | None = None) -> None:
        """`operands` is another back end's `operand_dtype`; without, it is as the reference has it."""
        self._operands = operands

    def operand_dtype(self, weight: WeightFormat) -> DType:
        """Of the back end that this one stands for."""
        if self._operands is not None:
            return self._operands(weight)
        return DType.Q8 if weight.is_quantized else DType.F32

    def load_weight(self, weight: PackedWeight | WeightShape) -> WeightShape:
        """The shape of a weight; a `WeightShape` where there is no data."""
        return WeightShape(weight.format, weight.num_outputs, weight.num_inputs)

    def create_adapters(self, num_outputs: int, num_inputs: int, capacity: int) -> AdapterShape:
        """The shape of the linear that they are for."""
        return AdapterShape(num_outputs, num_inputs)

    def load_vector(self, vector: NDArray[np.float32] | Sequence[float]) -> int:
        """The length."""
        return len(vector)

    def create_kv_cache(self, layout: KVLayout) -> ShapeKVCache:
        """Only the layout."""
        return ShapeKVCache(layout)

    def recorder(self, limits: StepLimits, kv_cache: KVCache) -> ShapeRecorder:
        """Start to record a program."""
        if not isinstance(kv_cache, ShapeKVCache):
            raise KernelError("recorder: the KV cache belongs to another back end.")
        return ShapeRecorder(self, limits, kv_cache)

    def bind_sample(self, logits: NDArray[np.float32], batch: SampleBatch) -> Draw:
        """`sample`, whatever is allowed."""
        return SampleAgain(self.sample, logits, batch)

    def sample(self, logits: NDArray[np.float32], batch: SampleBatch) -> SampleOutput:
        """Token 0 in every row."""
        return self.score(logits, np.zeros(len(logits), np.int32), batch.num_logprobs)

    def score(
        self,
        logits: NDArray[np.float32],
        token_ids: NDArray[np.int32],
        num_logprobs: NDArray[np.int32],
    ) -> SampleOutput:
        """Every token is certain."""
        num_rows = len(logits)
        num_top = max([0, *num_logprobs.tolist()])
        return SampleOutput(
            token_ids=token_ids,
            is_finite=np.ones(num_rows, np.bool_),
            logprobs=np.zeros(num_rows, np.float32),
            ranks=np.ones(num_rows, np.int32),
            top_ids=np.zeros((num_rows, num_top), np.int32),
            top_logprobs=np.zeros((num_rows, num_top), np.float32),
        )
