"""Run single ops on any back end through the public protocol, and read buffers of any dtype."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.kernels.cpu._native import detect_cpu
from headrace.kernels.cpu.backend import CpuBackend, CpuProgram
from headrace.kernels.ops import KVCache, Recorder
from headrace.kernels.packing import pack
from headrace.kernels.reference.backend import ReferenceBackend, ReferenceProgram
from headrace.kernels.values import Buffer, DType, KVLayout, Rows, StepInputs, StepLimits

Float32 = NDArray[np.float32]

#: Unit roundoff of each dtype: the largest relative error of rounding to it.
ROUNDOFF = {DType.F32: 2.0**-24, DType.BF16: 2.0**-8, DType.F16: 2.0**-11, DType.Q8: 0.5 / 127}

ISAS = [
    isa
    for isa, is_present in (
        ("generic", True),
        ("avx2", detect_cpu().has_avx2),
        ("avx512", detect_cpu().has_avx512),
        ("amx", detect_cpu().has_amx),
        ("neon", detect_cpu().has_neon),
    )
    if is_present
]

NO_KEYS = KVLayout(1, 1, 16, 16, DType.F32, (0,), (1,))


@dataclass(frozen=True)
class Batch:
    """Sequences of one step: how many tokens each runs, and how many keys it had before."""

    counts: tuple[int, ...]
    key_starts: tuple[int, ...]
    tables: tuple[NDArray[np.int32], ...]  # per group [slots, blocks]
    slots: tuple[int, ...] | None = None

    @property
    def num_tokens(self) -> int:
        return sum(self.counts)

    def step_inputs(self, output_rows: Sequence[int] = ()) -> StepInputs:
        slots = tuple(range(len(self.counts))) if self.slots is None else self.slots
        positions = [
            start + i
            for start, count in zip(self.key_starts, self.counts, strict=True)
            for i in range(count)
        ]
        return StepInputs(
            token_ids=np.arange(self.num_tokens, dtype=np.int32),
            positions=np.array(positions, np.int32),
            query_starts=np.cumsum([0, *self.counts]).astype(np.int32),
            key_starts=np.array(self.key_starts, np.int32),
            slots=np.array(slots, np.int32),
            block_tables=self.tables,
            output_rows=np.array(output_rows, np.int32),
        )


def rows_only(num_tokens: int) -> Batch:
    """A batch for ops that read no keys."""
    return Batch((num_tokens,), (0,), (np.zeros((1, -(-num_tokens // 16)), np.int32),))


def run_ops(
    backend: Any,
    inputs: Mapping[str, Float32],
    record: Callable[[Recorder, dict[str, Buffer]], dict[str, Buffer]],
    *,
    batch: Batch | None = None,
    kv_cache: KVCache | None = None,
    output_rows: Sequence[int] = (),
) -> dict[str, NDArray[Any]]:
    """Fill a buffer per input (embedding rows of a table: exact), record, run, read the outputs."""
    num_tokens = len(next(iter(inputs.values())))
    cache = backend.create_kv_cache(NO_KEYS) if kv_cache is None else kv_cache
    recorder = backend.recorder(StepLimits(num_tokens, max(1, len(output_rows))), cache)
    buffers = {}
    for name, array in inputs.items():
        buffers[name] = recorder.buffer(Rows.TOKENS, array.shape[1])
        recorder.embed(backend.load_weight(pack(array)), buffers[name])
    outputs = record(recorder, buffers)
    program = recorder.finish()
    steps = rows_only(num_tokens) if batch is None else batch
    program.run(steps.step_inputs(output_rows))
    num_rows = {Rows.TOKENS: num_tokens, Rows.OUTPUTS: len(output_rows)}
    return {
        name: read_rows(program, buffer, num_rows[buffer.rows]) for name, buffer in outputs.items()
    }


def read_rows(program: Any, buffer: Buffer, num_rows: int) -> Float32:
    """The values of any buffer as float32 (a Q8 row: its codes times its scales)."""
    if isinstance(program, ReferenceProgram):
        assert program._step is not None
        return program._step.load(buffer)[:num_rows].copy()
    assert isinstance(program, CpuProgram)
    if buffer.dtype is DType.F32:
        return program.read(buffer, num_rows).copy()
    raw = np.ascontiguousarray(program.read_bytes(buffer, num_rows))
    if buffer.dtype is DType.F16:
        return raw.view(np.float16)[:, : buffer.width].astype(np.float32)
    if buffer.dtype is DType.BF16:
        bits = raw.view(np.uint16)[:, : buffer.width].astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32)
    return _q8_values(raw, buffer.width)


def _q8_values(raw: NDArray[np.uint8], width: int) -> Float32:
    """Groups of 48 bytes: 32 codes, scale, scale * sum, two half sums (csrc/base/types.h)."""
    groups = -(-width // 32)
    parts = np.ascontiguousarray(raw[:, : groups * 48]).reshape(len(raw), groups, 48)
    codes = parts[:, :, :32].view(np.int8).astype(np.float32)
    scales = np.ascontiguousarray(parts[:, :, 32:36]).view(np.float32)
    scaled_sums = np.ascontiguousarray(parts[:, :, 36:40]).view(np.float32)[:, :, 0]
    half_sums = np.ascontiguousarray(parts[:, :, 40:48]).view(np.int32)
    assert np.array_equal(half_sums[:, :, 0], codes[:, :, :16].sum(axis=2))
    assert np.array_equal(half_sums[:, :, 1], codes[:, :, 16:].sum(axis=2))
    with np.errstate(invalid="ignore", over="ignore"):  # groups with a fault, and huge ones
        np.testing.assert_allclose(scaled_sums, scales[:, :, 0] * codes.sum(axis=2), rtol=1e-6)
        return (codes * scales).reshape(len(raw), -1)[:, :width]


def reference() -> ReferenceBackend:
    """The specification."""
    return ReferenceBackend()


def cpu(isa: str, num_threads: int = 2) -> CpuBackend:
    """The C++ kernels of one instruction set."""
    return CpuBackend(isa, num_threads)


def output_tolerance(expected: Float32, dtype: DType, relative: float) -> Float32:
    """Allowed error of values that a kernel computes with relative error `relative` and then stores.

    Rounding of a value that is slightly off may go the other way: one roundoff more than the
    reference's own. A Q8 element is off by at most one code, of its group's largest magnitude.
    """
    magnitude = np.abs(expected)
    if dtype is DType.Q8:
        num_rows, width = expected.shape
        padded = np.zeros((num_rows, -(-width // 32) * 32), np.float32)
        padded[:, :width] = magnitude
        largest = padded.reshape(num_rows, -1, 32).max(axis=2)
        magnitude = np.repeat(largest, 32, axis=1)[:, :width]
        return magnitude * np.float32((1 + 2 * relative) / 127 + 4 * relative) + np.float32(1e-30)
    smallest = {DType.F16: 2.0**-24}.get(dtype, 1e-38)  # spacing of subnormals
    return magnitude * np.float32(2 * ROUNDOFF[dtype] + relative) + np.float32(smallest)


def assert_close(actual: Float32, expected: Float32, tolerance: Any) -> None:
    """NaN where NaN is expected; elsewhere |actual - expected| <= tolerance."""
    assert actual.shape == expected.shape
    assert np.array_equal(np.isnan(actual), np.isnan(expected))
    with np.errstate(invalid="ignore"):
        error = np.where(actual == expected, 0, np.abs(actual - expected))
    worst = np.nan_to_num(error - tolerance, nan=-1.0)
    where = np.unravel_index(int(np.argmax(worst)), worst.shape)
    assert worst[where] <= 0, (
        f"at {where}: {actual[where]} instead of {expected[where]}, "
        f"off by {error[where]}, allowed {np.broadcast_to(tolerance, worst.shape)[where]}"
    )
