"""The reference back end: plain numpy, slow and obvious. Every other back end is tested against it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import KernelError
from headrace.kernels.bound import Draw, SampleAgain, run_and_read
from headrace.kernels.formats import Matrix, PackedWeight, WeightFormat
from headrace.kernels.ops import KVCache, Recorder
from headrace.kernels.reference import sampling
from headrace.kernels.reference.adapters import ReferenceAdapters
from headrace.kernels.reference.inputs import check_inputs
from headrace.kernels.reference.kv_cache import ReferenceKVCache
from headrace.kernels.reference.step import ReferenceStep
from headrace.kernels.reference.weights import ReferenceWeight, load_matrix
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

Call = tuple[str, Mapping[str, Any]]


class ReferenceProgram:
    """A list of calls, made in order."""

    def __init__(
        self,
        calls: Sequence[Call],
        limits: StepLimits,
        kv_cache: ReferenceKVCache,
        arena_bytes: int = 0,
    ) -> None:
        self._calls = tuple(calls)
        self.arena_bytes = arena_bytes
        """Of all buffers, were each kept in float32."""
        self._has_adapters = any(op == "adapt" for op, _ in calls)
        self._limits = limits
        self._kv_cache = kv_cache
        self._step: ReferenceStep | None = None

    def clear(self) -> None:
        """Part of `ops.Program`."""
        self._step = None

    def run(self, inputs: StepInputs) -> None:
        """One step. Raises KernelError for inputs that break the limits or the shapes."""
        check_inputs(inputs, self._limits, self._kv_cache.layout)
        if inputs.adapters is not None and inputs.adapters.any() and not self._has_adapters:
            raise KernelError("run: adapters are not part of this program.")
        step = ReferenceStep(inputs, self._kv_cache)
        for op, arguments in self._calls:
            getattr(step, op)(**arguments)
        self._step = step

    def bind(
        self, inputs: StepInputs, buffer: Buffer, num_rows: int
    ) -> Callable[[], NDArray[np.float32]]:
        """`run`, then `read`."""
        return run_and_read(self, inputs, buffer, num_rows)

    def read(self, buffer: Buffer, num_rows: int) -> NDArray[np.float32]:
        """The first rows of a float32 buffer."""
        if self._step is None:
            raise KernelError("read: the program has not run yet.")
        if buffer.dtype is not DType.F32:
            raise KernelError(f"read: {buffer.dtype} given where f32 is needed.")
        return self._step.load(buffer)[:num_rows]


class ReferenceRecorder(Recorder):
    """Records calls of `ReferenceStep` methods."""

    def __init__(
        self, backend: "ReferenceBackend", limits: StepLimits, kv_cache: ReferenceKVCache
    ) -> None:
        self._backend = backend
        self._limits = limits
        self._kv_cache = kv_cache
        self._num_buffers = 0
        self._arena_bytes = 0
        self._calls: list[Call] = []

    def buffer(self, rows: Rows, width: int, dtype: DType = DType.F32) -> Buffer:
        self._require(width > 0, "buffer", "the width is at least 1")
        self._num_buffers += 1
        is_output = rows is Rows.OUTPUTS
        num_rows = self._limits.max_outputs if is_output else self._limits.max_tokens
        self._arena_bytes += 4 * width * num_rows
        return Buffer(self._num_buffers - 1, rows, width, dtype)

    def emit(self, op: str, **arguments: Any) -> None:
        self._require(hasattr(ReferenceStep, op), op, "this op is not in the catalogue")
        self._calls.append((op, arguments))

    def finish(self) -> ReferenceProgram:
        return ReferenceProgram(self._calls, self._limits, self._kv_cache, self._arena_bytes)

    def weight_shape(self, weight: Any) -> tuple[WeightFormat, int, int]:
        return weight.format, weight.num_outputs, weight.num_inputs

    def adapters_shape(self, adapters: Any) -> tuple[int, int]:
        return adapters.num_outputs, adapters.num_inputs

    def vector_size(self, vector: Any) -> int:
        return int(vector.size)

    def operand_dtype(self, weight: WeightFormat) -> DType:
        return self._backend.operand_dtype(weight)

    def _kv_shape(self) -> tuple[int, int]:
        return self._kv_cache.layout.head_size, self._kv_cache.layout.num_kv_heads


class ReferenceBackend:
    """numpy.

    With `exact` quantised weights are multiplied as the fast back ends do it: int8 activations, integer
    dots. Without, they are dequantised when loaded and all linears take float32: the yardstick for how
    much quantising activations costs.
    """

    name = "reference"
    isa = "numpy"
    num_threads = 1

    def __init__(self, *, exact: bool = True) -> None:
        self._exact = exact

    def operand_dtype(self, weight: WeightFormat) -> DType:
        """Q8 for quantised weights in exact mode, else F32."""
        return DType.Q8 if self._exact and weight.is_quantized else DType.F32

    def load_weight(self, weight: PackedWeight | Matrix) -> ReferenceWeight:
        """A packed weight, or (for tests) a matrix that was never packed."""
        return load_matrix(weight, keep_codes=self._exact)

    def create_adapters(
        self, num_outputs: int, num_inputs: int, capacity: int
    ) -> ReferenceAdapters:
        """The adapters of one linear, none of them set."""
        return ReferenceAdapters(num_outputs, num_inputs, capacity)

    def load_vector(self, vector: NDArray[np.float32] | Sequence[float]) -> NDArray[np.float32]:
        """The vector itself, as float32."""
        return np.ascontiguousarray(vector, dtype=np.float32).reshape(-1)

    def create_kv_cache(self, layout: KVLayout) -> ReferenceKVCache:
        """Zeroed blocks."""
        return ReferenceKVCache(layout)

    def recorder(self, limits: StepLimits, kv_cache: KVCache) -> ReferenceRecorder:
        """Start to record a program."""
        if not isinstance(kv_cache, ReferenceKVCache):
            raise KernelError("recorder: the KV cache belongs to another back end.")
        return ReferenceRecorder(self, limits, kv_cache)

    def sample(self, logits: NDArray[np.float32], batch: SampleBatch) -> SampleOutput:
        """Draw one token per row; `sampling.sample` is the specification."""
        return sampling.sample(logits, batch)

    def bind_sample(self, logits: NDArray[np.float32], batch: SampleBatch) -> Draw:
        """`sample` with other masks each time."""
        return SampleAgain(sampling.sample, logits, batch)

    def score(
        self,
        logits: NDArray[np.float32],
        token_ids: NDArray[np.int32],
        num_logprobs: NDArray[np.int32],
    ) -> SampleOutput:
        """Log-probabilities of given tokens."""
        return sampling.score(logits, token_ids, num_logprobs)
