"""The C++ module, see csrc/bindings. Buffers, weights and vectors are handles."""

from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.kernels.values import SampleOutput

class DType(Enum):
    F32 = 0
    BF16 = 1
    F16 = 2
    Q8 = 3
    INT8 = 4
    INT16 = 5

class Rows(Enum):
    TOKENS = 0
    OUTPUTS = 1

class WeightFormat(Enum):
    W4G32 = 0
    W8G32 = 1
    W8G16 = 2
    BF16 = 3
    F16 = 4
    F32 = 5

class Isa(Enum):
    GENERIC = 0
    AVX2 = 1
    AVX512 = 2
    AMX = 3
    NEON = 4

class Activation(Enum):
    SILU = 0
    GELU_TANH = 1
    GELU = 2

class CpuFeatures:
    has_avx2: bool
    has_avx512: bool
    has_avx512_bf16: bool
    has_amx: bool
    has_neon: bool

def detect_cpu() -> CpuFeatures: ...

class Weight:
    format: WeightFormat
    num_outputs: int
    num_inputs: int

def make_weight(
    format: WeightFormat,
    num_outputs: int,
    num_inputs: int,
    has_mins: bool,
    offset: int,
    data: NDArray[np.uint8],
) -> Weight: ...

class Adapters:
    num_outputs: int
    num_inputs: int

    def __init__(self, num_outputs: int, num_inputs: int, capacity: int) -> None: ...
    def set(self, index: int, down: NDArray[np.float32], up: NDArray[np.float32]) -> None: ...
    def clear(self, index: int) -> None: ...

class Vector:
    size: int
    def __init__(self, values: NDArray[np.float32]) -> None: ...

class Device:
    isa: Isa
    num_threads: int
    def __init__(self, isa: Isa, num_threads: int) -> None: ...
    def operand_dtype(self, format: WeightFormat, /) -> DType: ...

class Buffer: ...

class KVCache:
    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        head_size: int,
        block_size: int,
        dtype: DType,
        layer_groups: tuple[int, ...],
        num_blocks: tuple[int, ...],
    ) -> None: ...
    def clear(self) -> None: ...
    def copy_block(self, group: int, source: int, target: int, /) -> None: ...
    def export_block(self, group: int, block: int, /) -> NDArray[np.float32]: ...
    def import_block(self, group: int, block: int, data: NDArray[np.float32], /) -> None: ...

class Program:
    """Beside these, one `add_<op>` per op, with the arguments that `Recorder.emit` gets."""

    arena_bytes: int
    num_ops: int
    def __init__(
        self, device: Device, cache: KVCache, max_tokens: int, max_outputs: int
    ) -> None: ...
    def add_buffer(self, rows: Rows, width: int, dtype: DType, /) -> Buffer: ...
    def read(self, buffer: Buffer, num_rows: int, /) -> NDArray[np.float32]: ...
    def read_bytes(self, buffer: Buffer, num_rows: int, /) -> NDArray[np.uint8]: ...
    def write(self, buffer: Buffer, rows: NDArray[np.float32], /) -> None: ...
    def clear(self) -> None: ...
    def set_profiling(self, enabled: bool, /) -> None: ...
    def set_row_blocks(self, enabled: bool, /) -> None: ...
    def times(self) -> dict[str, tuple[int, int]]: ...

class BoundStep:
    """The arrays of a step; their contents may change between two calls."""

    def __init__(
        self,
        program: Program,
        token_ids: NDArray[np.int32],
        positions: NDArray[np.int32],
        query_starts: NDArray[np.int32],
        key_starts: NDArray[np.int32],
        slots: NDArray[np.int32],
        block_tables: tuple[NDArray[np.int32], ...],
        output_rows: NDArray[np.int32],
        adapters: NDArray[np.int32] | None,
        embeddings: NDArray[np.float32] | None,
        result: NDArray[np.float32] | None,
        /,
    ) -> None: ...
    def __call__(self) -> Any:
        """Run; `result` itself."""

class BoundSample:
    """A batch, its logits and its outputs; their contents may change between two calls."""

    def __init__(
        self,
        device: Device,
        logits: NDArray[np.float32],
        temperature: NDArray[np.float32],
        top_k: NDArray[np.int32],
        top_p: NDArray[np.float32],
        min_p: NDArray[np.float32],
        presence_penalty: NDArray[np.float32],
        frequency_penalty: NDArray[np.float32],
        repetition_penalty: NDArray[np.float32],
        typical_p: NDArray[np.float32],
        top_n_sigma: NDArray[np.float32],
        xtc_probability: NDArray[np.float32],
        xtc_threshold: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        output_positions: NDArray[np.int64],
        num_logprobs: NDArray[np.int32],
        post_sampling: NDArray[np.bool_],
        slots: NDArray[np.int32],
        history: NDArray[np.int32],
        history_lengths: NDArray[np.int32],
        num_prompt: NDArray[np.int32],
        bias_starts: NDArray[np.int32],
        bias_ids: NDArray[np.int32],
        bias_values: NDArray[np.float32],
        token_ids: NDArray[np.int32],
        is_finite: NDArray[np.bool_],
        logprobs: NDArray[np.float32],
        ranks: NDArray[np.int32],
        top_ids: NDArray[np.int32],
        top_logprobs: NDArray[np.float32],
        output: SampleOutput,
        /,
    ) -> None: ...
    @property
    def output(self) -> SampleOutput: ...
    @property
    def seconds(self) -> float:
        """What the kernel took in the last call, for measurements."""
    def set_dry(
        self,
        multiplier: NDArray[np.float32],
        base: NDArray[np.float32],
        allowed_length: NDArray[np.int32],
        window: NDArray[np.int32],
        sets: NDArray[np.int32],
        breakers: NDArray[np.uint32],
        words: NDArray[np.int32],
        /,
    ) -> None: ...
    def __call__(self, allowed: NDArray[np.uint32] | None, /) -> list[int]: ...

def score(
    device: Device,
    logits: NDArray[np.float32],
    num_logprobs: NDArray[np.int32],
    token_ids: NDArray[np.int32],
    is_finite: NDArray[np.bool_],
    logprobs: NDArray[np.float32],
    ranks: NDArray[np.int32],
    top_ids: NDArray[np.int32],
    top_logprobs: NDArray[np.float32],
    /,
) -> None: ...
