"""The C++ back end: records ops into a native program, which then runs a step in one call."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import KernelError
from headrace.kernels.cpu import _native
from headrace.kernels.cpu.sample import bind_sample, score
from headrace.kernels.formats import LowRank, PackedWeight, WeightFormat
from headrace.kernels.ops import KVCache, Recorder
from headrace.kernels.values import (
    Activation,
    Buffer,
    DType,
    KVLayout,
    Rows,
    SampleBatch,
    SampleOutput,
    StepInputs,
    StepLimits,
)

_DTYPES = {dtype: _native.DType[dtype.name] for dtype in DType}
_DTYPES_BACK = {native: dtype for dtype, native in _DTYPES.items()}
_ROWS = {rows: _native.Rows[rows.name] for rows in Rows}
_FORMATS = {weight: _native.WeightFormat[weight.name] for weight in WeightFormat}
_FORMATS_BACK = {native: weight for weight, native in _FORMATS.items()}
_ACTIVATIONS = {kind: _native.Activation[kind.name] for kind in Activation}
_ISAS = {
    "generic": _native.Isa.GENERIC,
    "avx2": _native.Isa.AVX2,
    "avx512": _native.Isa.AVX512,
    "amx": _native.Isa.AMX,
    "neon": _native.Isa.NEON,
}


class CpuKVCache:
    """Keys and values in anonymous memory, touched when written."""

    def __init__(self, layout: KVLayout) -> None:
        self.layout = layout
        self.native = _native.KVCache(
            layout.num_layers,
            layout.num_kv_heads,
            layout.head_size,
            layout.block_size,
            _DTYPES[layout.dtype],
            layout.layer_groups,
            layout.num_blocks,
        )

    def clear(self) -> None:
        """Give the memory of all blocks back: they are zeros again."""
        self.native.clear()

    def copy_block(self, group: int, source: int, target: int) -> None:
        """Copy one block in every layer of the group."""
        self.native.copy_block(group, source, target)

    def export_block(self, group: int, block: int) -> NDArray[np.float32]:
        """[2, layers of the group, G, P, D] as float32, keys then values."""
        return self.native.export_block(group, block).reshape(self._block_shape(group))

    def import_block(self, group: int, block: int, data: NDArray[np.float32]) -> None:
        """The inverse of `export_block`, rounding to the cache's dtype."""
        if data.shape != self._block_shape(group):
            raise KernelError(
                f"import_block: {data.shape} given, {self._block_shape(group)} needed."
            )
        flat = np.ascontiguousarray(data, dtype=np.float32).reshape(-1)
        self.native.import_block(group, block, flat)

    def _block_shape(self, group: int) -> tuple[int, ...]:
        layout = self.layout
        num_layers = layout.layer_groups.count(group)
        return (2, num_layers, layout.num_kv_heads, layout.block_size, layout.head_size)


class CpuAdapters:
    """The adapters of one linear: copies in panels, bf16 where that loses nothing, else float32."""

    def __init__(self, native: _native.Adapters) -> None:
        self.native = native

    def set(self, index: int, entry: LowRank | None) -> None:
        """Part of `ops.Adapters`."""
        if entry is None:
            self.native.clear(index)
            return
        down, up = (np.ascontiguousarray(m, np.float32) for m in (entry.down, entry.up))
        try:
            self.native.set(index, down, up)
        except ValueError as error:
            raise KernelError(f"adapters: {error}") from None


class CpuProgram:
    """A recorded model. Everything but the check of the arrays' dtypes happens in C++."""

    def __init__(self, native: _native.Program, buffers: Sequence[_native.Buffer]) -> None:
        self._native = native
        self._buffers = tuple(buffers)

    @property
    def arena_bytes(self) -> int:
        """Address space of all buffers; only rows that were written take memory."""
        return self._native.arena_bytes

    def run(self, inputs: StepInputs) -> None:
        """One step. Raises KernelError for inputs that break the limits or the shapes."""
        self._bind(inputs, None)()

    def bind(
        self, inputs: StepInputs, buffer: Buffer, num_rows: int
    ) -> Callable[[], NDArray[np.float32]]:
        """`run` and `read` in one call, which gives the same view each time.

        What the arrays hold is checked at each call.
        """
        return self._bind(inputs, self.read(buffer, num_rows))

    def _bind(self, inputs: StepInputs, result: NDArray[np.float32] | None) -> Callable[[], Any]:
        return _native.BoundStep(
            self._native,
            inputs.token_ids,
            inputs.positions,
            inputs.query_starts,
            inputs.key_starts,
            inputs.slots,
            inputs.block_tables,
            inputs.output_rows,
            inputs.adapters,
            inputs.embeddings,
            result,
        )

    def read(self, buffer: Buffer, num_rows: int) -> NDArray[np.float32]:
        """A view of the first rows of a float32 buffer, valid until the next run.

        Rows are contiguous, but the distance between them is padded.
        """
        return self._native.read(self._buffers[buffer.index], num_rows)

    def read_bytes(self, buffer: Buffer, num_rows: int) -> NDArray[np.uint8]:
        """The stored bytes of the first rows, padding included. For tests and measurements."""
        return self._native.read_bytes(self._buffers[buffer.index], num_rows)

    def write(self, buffer: Buffer, rows: NDArray[np.float32]) -> None:
        """Fill the first rows of a buffer, converting to its dtype. For tests and measurements."""
        self._native.write(self._buffers[buffer.index], np.ascontiguousarray(rows))

    def clear(self) -> None:
        """Give the arena's memory back; the next run takes it anew."""
        self._native.clear()

    def set_profiling(self, enabled: bool) -> None:
        """Start (from zero) or stop to time ops."""
        self._native.set_profiling(enabled)

    def set_row_blocks(self, enabled: bool) -> None:
        """Whether steps of many rows run in blocks of rows. For tests and measurements.

        Results are the same to the bit.
        """
        self._native.set_row_blocks(enabled)

    def times(self) -> dict[str, tuple[int, int]]:
        """Per op: calls and nanoseconds since profiling was switched on."""
        return self._native.times()


class CpuRecorder(Recorder):
    """Appends each op to a native program as it is recorded."""

    def __init__(self, device: _native.Device, limits: StepLimits, kv_cache: CpuKVCache) -> None:
        self._device = device
        self._layout = kv_cache.layout
        self._program = _native.Program(
            device, kv_cache.native, limits.max_tokens, limits.max_outputs
        )
        self._buffers: list[_native.Buffer] = []

    def buffer(self, rows: Rows, width: int, dtype: DType = DType.F32) -> Buffer:
        self._buffers.append(self._program.add_buffer(_ROWS[rows], width, _DTYPES[dtype]))
        return Buffer(len(self._buffers) - 1, rows, width, dtype)

    def emit(self, op: str, **arguments: Any) -> None:
        append: Callable[..., None] | None = getattr(self._program, f"add_{op}", None)
        if append is None:
            raise KernelError(f"{op}: the cpu back end has no such op.")
        append(**{name: self._to_native(value) for name, value in arguments.items()})

    def finish(self) -> CpuProgram:
        return CpuProgram(self._program, self._buffers)

    def weight_shape(self, weight: Any) -> tuple[WeightFormat, int, int]:
        return _FORMATS_BACK[weight.format], weight.num_outputs, weight.num_inputs

    def adapters_shape(self, adapters: Any) -> tuple[int, int]:
        return adapters.native.num_outputs, adapters.native.num_inputs

    def vector_size(self, vector: Any) -> int:
        return int(vector.size)

    def operand_dtype(self, weight: WeightFormat) -> DType:
        return _DTYPES_BACK[self._device.operand_dtype(_FORMATS[weight])]

    def _kv_shape(self) -> tuple[int, int]:
        return self._layout.head_size, self._layout.num_kv_heads

    def _to_native(self, value: Any) -> Any:
        if isinstance(value, Buffer):
            return self._buffers[value.index]
        if isinstance(value, CpuAdapters):
            return value.native
        if isinstance(value, Activation):
            return _ACTIVATIONS[value]
        return value


class CpuBackend:
    """Kernels of one instruction set and a pool of threads."""

    name = "cpu"

    def __init__(self, isa: str, num_threads: int) -> None:
        """`isa` is one of `dispatch.ISAS`. Raises KernelError when this machine lacks it."""
        self.isa = isa
        self.num_threads = num_threads
        self._device = _native.Device(_ISAS[isa], num_threads)

    def operand_dtype(self, weight: WeightFormat) -> DType:
        """Q8 for quantised weights; BF16 for bf16 ones where the machine multiplies pairs; else F32."""
        return _DTYPES_BACK[self._device.operand_dtype(_FORMATS[weight])]

    def load_weight(self, weight: PackedWeight) -> _native.Weight:
        """A handle; keeps a reference to the data, which must be aligned to 64 bytes."""
        return _native.make_weight(
            _FORMATS[weight.format],
            weight.num_outputs,
            weight.num_inputs,
            weight.has_mins,
            weight.offset,
            weight.data,
        )

    def create_adapters(self, num_outputs: int, num_inputs: int, capacity: int) -> CpuAdapters:
        """The adapters of one linear, none of them set; `capacity` is at most 256."""
        return CpuAdapters(_native.Adapters(num_outputs, num_inputs, capacity))

    def load_vector(self, vector: NDArray[np.float32] | Sequence[float]) -> _native.Vector:
        """A copy in aligned, padded memory."""
        return _native.Vector(np.ascontiguousarray(vector, dtype=np.float32).reshape(-1))

    def create_kv_cache(self, layout: KVLayout) -> CpuKVCache:
        """Zeroed blocks; memory is touched only when written."""
        return CpuKVCache(layout)

    def recorder(self, limits: StepLimits, kv_cache: KVCache) -> CpuRecorder:
        """Start to record a program."""
        if not isinstance(kv_cache, CpuKVCache):
            raise KernelError("recorder: the KV cache belongs to another back end.")
        return CpuRecorder(self._device, limits, kv_cache)

    def sample(self, logits: NDArray[np.float32], batch: SampleBatch) -> SampleOutput:
        """Draw one token per row; see `reference/sampling.py`. Uses `logits` as scratch."""
        draw = bind_sample(self._device, logits, batch)
        draw(batch.allowed)
        return draw.output

    def bind_sample(self, logits: NDArray[np.float32], batch: SampleBatch) -> _native.BoundSample:
        """`sample` of these logits; rows must be contiguous. Values are checked at each draw."""
        return bind_sample(self._device, logits, batch)

    def score(
        self,
        logits: NDArray[np.float32],
        token_ids: NDArray[np.int32],
        num_logprobs: NDArray[np.int32],
    ) -> SampleOutput:
        """Log-probabilities of given tokens; see `reference/sampling.py`. Rows must be contiguous."""
        return score(self._device, logits, token_ids, num_logprobs)
