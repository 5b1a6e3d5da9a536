"""Random weights of every format, and what a linear over them must give."""

import numpy as np
from numpy.typing import NDArray

from headrace.kernels.cpu.backend import CpuBackend, CpuProgram
from headrace.kernels.formats import Matrix, QuantizedMatrix, WeightFormat
from headrace.kernels.values import Buffer, DType, KVLayout, Rows, StepInputs, StepLimits

#: name -> (format, has mins, offset): what file types make of the formats.
KINDS = {
    "w4g32": (WeightFormat.W4G32, False, 8),
    "w4g32-mins": (WeightFormat.W4G32, True, 0),
    "w8g32": (WeightFormat.W8G32, False, 128),
    "w8g32-mins": (WeightFormat.W8G32, True, 0),
    "w8g16": (WeightFormat.W8G16, False, 32),
    "w8g16-mins": (WeightFormat.W8G16, True, 0),
    "bf16": (WeightFormat.BF16, False, 0),
    "f16": (WeightFormat.F16, False, 0),
    "f32": (WeightFormat.F32, False, 0),
}

Floats = NDArray[np.float32]


def random_matrix(rng: np.random.Generator, kind: str, num_outputs: int, num_inputs: int) -> Matrix:
    """Codes over their whole range; scales and mins as they are in checkpoints."""
    weight_format, has_mins, offset = KINDS[kind]
    shape = (num_outputs, num_inputs)
    if not weight_format.is_quantized:
        values = rng.standard_normal(shape).astype(np.float32)
        if weight_format is WeightFormat.BF16:
            return (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        return values.astype(np.float16) if weight_format is WeightFormat.F16 else values
    limit = 16 if weight_format is WeightFormat.W4G32 else 256
    groups = (num_outputs, -(-num_inputs // weight_format.group_size))
    scales = rng.uniform(0.001, 0.02, groups).astype(np.float16).astype(np.float32)
    mins = rng.uniform(-0.2, 0.0, groups).astype(np.float16).astype(np.float32)
    codes = rng.integers(0, limit, shape, dtype=np.uint8)
    return QuantizedMatrix(weight_format, codes, scales, mins if has_mins else None, offset)


def dequantize(matrix: Matrix) -> NDArray[np.float64]:
    """The matrix as exact numbers."""
    if isinstance(matrix, QuantizedMatrix):
        size, width = matrix.format.group_size, matrix.codes.shape[1]
        spread = np.repeat(matrix.scales.astype(np.float64), size, axis=1)[:, :width]
        values = spread * (matrix.codes.astype(np.float64) - matrix.offset)
        if matrix.mins is not None:
            values += np.repeat(matrix.mins.astype(np.float64), size, axis=1)[:, :width]
        return values
    if matrix.dtype == np.uint16:
        return (matrix.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return matrix.astype(np.float64)


def operand(rows: Floats, dtype: DType) -> NDArray[np.float64]:
    """The rows as a linear reads them after conversion to `dtype`."""
    if dtype is DType.F32:
        return rows.astype(np.float64)
    if dtype is DType.BF16:
        bits = rows.view(np.uint32)
        odd = (bits >> np.uint32(16)) & np.uint32(1)
        rounded = (bits + np.uint32(0x7FFF) + odd) & np.uint32(0xFFFF0000)
        return rounded.view(np.float32).astype(np.float64)
    count, width = rows.shape
    padded = np.zeros((count, -(-width // 32) * 32), dtype=np.float32)
    padded[:, :width] = rows
    groups = padded.reshape(count, -1, 32)
    largest = np.abs(groups).max(axis=2, keepdims=True)
    inverse = np.where(largest > 0, np.float32(127) / np.where(largest > 0, largest, 1), 0)
    codes = np.rint(groups * inverse.astype(np.float32)).astype(np.float64)
    scales = (largest / np.float32(127)).astype(np.float32).astype(np.float64)
    return (codes * scales).reshape(count, -1)[:, :width]


def tolerance(
    weight: NDArray[np.float64], rows: NDArray[np.float64], extra: float = 0.0
) -> NDArray[np.float64]:
    """A bound on float32 rounding: each of K additions errs by at most one unit of the sum of magnitudes.

    Minimums are added apart from codes, so magnitudes are those of the parts (`extra` per input).
    """
    magnitudes = np.abs(rows) @ (np.abs(weight) + extra).T
    return (rows.shape[1] + 8) * 2.0**-24 * magnitudes + 1e-30


def step_inputs(num_tokens: int, token_ids: NDArray[np.int32] | None = None) -> StepInputs:
    """One sequence of `num_tokens`, all of them outputs."""
    ids = np.zeros(num_tokens, dtype=np.int32) if token_ids is None else token_ids
    return StepInputs(
        token_ids=ids,
        positions=np.arange(num_tokens, dtype=np.int32),
        query_starts=np.array([0, num_tokens], dtype=np.int32),
        key_starts=np.zeros(1, dtype=np.int32),
        slots=np.zeros(1, dtype=np.int32),
        block_tables=(np.zeros((1, 64), dtype=np.int32),),
        output_rows=np.arange(num_tokens, dtype=np.int32),
    )


def record(backend: CpuBackend, limits: StepLimits, build) -> tuple[CpuProgram, dict[str, Buffer]]:
    """A program of the ops that `build(recorder)` adds; returns its named buffers too."""
    layout = KVLayout(1, 1, 16, 16, DType.F32, (0,), (64,))
    recorder = backend.recorder(limits, backend.create_kv_cache(layout))
    buffers = build(recorder)
    return recorder.finish(), buffers


def run_linear(backend: CpuBackend, packed, rows: Floats, *, width: int = 0, **options) -> Floats:
    """`rows` times the weight's transpose, as the back end does it; `initial` fills the output before."""
    initial = options.pop("initial", None)
    num_rows = len(rows)

    def build(recorder):
        x = recorder.buffer(Rows.TOKENS, packed.num_inputs, recorder.operand_dtype(packed.format))
        out = recorder.buffer(Rows.TOKENS, width or packed.num_outputs)
        bias = options.pop("bias", None)
        handle = None if bias is None else backend.load_vector(bias)
        recorder.linear(x, backend.load_weight(packed), out, bias=handle, **options)
        return {"x": x, "out": out}

    program, buffers = record(backend, StepLimits(num_rows, num_rows), build)
    program.write(buffers["x"], rows)
    if initial is not None:
        program.write(buffers["out"], initial)
    program.run(step_inputs(num_rows))
    return program.read(buffers["out"], num_rows).copy()
