import numpy as np
import pytest
from tests.support.gemm_cases import (
    KINDS,
    dequantize,
    operand,
    random_matrix,
    record,
    run_linear,
    step_inputs,
    tolerance,
)

from headrace.core.errors import KernelError
from headrace.kernels.cpu import _native
from headrace.kernels.cpu.backend import CpuBackend
from headrace.kernels.formats import PackedWeight
from headrace.kernels.packing import pack, unpack
from headrace.kernels.values import Rows, StepLimits

CPU = _native.detect_cpu()
ISAS = [
    "generic",
    *["avx2"] * CPU.has_avx2,
    *["avx512"] * CPU.has_avx512,
    *["amx"] * CPU.has_amx,
    *["neon"] * CPU.has_neon,
]
BACKENDS = {isa: CpuBackend(isa, 2) for isa in ISAS}

SHAPES = [(1, 1, 1), (3, 17, 33), (7, 16, 32), (13, 50, 100), (5, 96, 576), (40, 64, 160)]


def _min_size(matrix) -> float:
    mins = getattr(matrix, "mins", None)
    offset = getattr(matrix, "offset", 0)
    scales = getattr(matrix, "scales", None)
    size = 0.0 if mins is None else 2 * float(np.abs(mins).max())
    return size + (0.0 if scales is None else float(scales.max()) * offset)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_linear_is_the_product(isa, kind, shape):
    num_rows, num_outputs, num_inputs = shape
    rng = np.random.default_rng(3)
    backend = BACKENDS[isa]
    matrix = random_matrix(rng, kind, num_outputs, num_inputs)
    rows = rng.standard_normal((num_rows, num_inputs)).astype(np.float32)
    packed = pack(matrix)
    found = run_linear(backend, packed, rows)
    weight = dequantize(matrix)
    x = operand(rows, backend.operand_dtype(packed.format))
    error = np.abs(found - x @ weight.T)
    assert (error <= tolerance(weight, x, _min_size(matrix))).all(), error.max()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_does_not_depend_on_its_batch(isa, kind):
    rng = np.random.default_rng(4)
    packed = pack(random_matrix(rng, kind, 200, 96))
    rows = rng.standard_normal((61, 96)).astype(np.float32)
    whole = run_linear(BACKENDS[isa], packed, rows)
    for start, stop in [(0, 1), (1, 3), (3, 6), (6, 10), (10, 15), (15, 21), (21, 30), (30, 61)]:
        part = run_linear(BACKENDS[isa], packed, rows[start:stop])
        np.testing.assert_array_equal(part, whole[start:stop])


@pytest.mark.parametrize("kind", KINDS)
def test_threads_change_no_bit(kind):
    rng = np.random.default_rng(5)
    packed = pack(random_matrix(rng, kind, 333, 64))
    rows = rng.standard_normal((130, 64)).astype(np.float32)
    results = [run_linear(CpuBackend(ISAS[-1], threads), packed, rows) for threads in (1, 2, 5)]
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["w4g32", "w8g16", "f32", "bf16"])
@pytest.mark.parametrize("num_outputs", [16, 21])
def test_bias_scale_column_and_residual(isa, kind, num_outputs):
    rng = np.random.default_rng(6)
    backend = BACKENDS[isa]
    packed = pack(random_matrix(rng, kind, num_outputs, 64))
    rows = rng.standard_normal((5, 64)).astype(np.float32)
    bias = rng.standard_normal(num_outputs).astype(np.float32)
    initial = rng.standard_normal((5, 48)).astype(np.float32)
    plain = run_linear(backend, packed, rows)
    found = run_linear(
        backend,
        packed,
        rows,
        width=48,
        bias=bias,
        scale=0.5,
        first_column=7,
        accumulate=True,
        initial=initial,
    )
    expected = initial.copy()
    expected[:, 7 : 7 + num_outputs] += (plain + bias) * np.float32(0.5)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_tokens", [3, 20])
def test_embed_reads_rows_exactly(isa, kind, num_tokens):
    rng = np.random.default_rng(7)
    backend = BACKENDS[isa]
    packed = pack(random_matrix(rng, kind, 70, 50))
    ids = rng.integers(0, 70, num_tokens, dtype=np.int32)

    def build(recorder):
        out = recorder.buffer(Rows.TOKENS, 50)
        recorder.embed(backend.load_weight(packed), out, scale=3.7)
        return {"out": out}

    program, buffers = record(backend, StepLimits(num_tokens, 1), build)
    inputs = step_inputs(num_tokens, ids)
    inputs.output_rows = inputs.output_rows[:1]
    program.run(inputs)
    expected = unpack(packed)[ids] * np.float32(3.7)
    np.testing.assert_array_equal(program.read(buffers["out"], num_tokens), expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_number_stays_in_its_row(isa, kind, bad):
    rng = np.random.default_rng(8)
    packed = pack(random_matrix(rng, kind, 40, 64))
    rows = rng.standard_normal((9, 64)).astype(np.float32)
    clean = run_linear(BACKENDS[isa], packed, rows)
    rows[4, 33] = bad
    found = run_linear(BACKENDS[isa], packed, rows)
    assert not np.isfinite(found[4]).any()
    others = [0, 1, 2, 3, 5, 6, 7, 8]
    np.testing.assert_array_equal(found[others], clean[others])


@pytest.mark.parametrize("isa", ISAS)
def test_extreme_codes_do_not_overflow(isa):
    """All codes and activations at their limits: sums of 16-bit halves are exact in every set."""
    rows = np.ones((4, 64), dtype=np.float32)
    rows[1] = -1.0
    rows[2, ::2] = -1.0
    for kind in ("w4g32", "w4g32-mins", "w8g32-mins", "w8g16-mins"):
        matrix = random_matrix(np.random.default_rng(9), kind, 32, 64)
        matrix.codes[:] = 15 if kind.startswith("w4") else 255
        matrix.scales[:] = 1.0
        if matrix.mins is not None:
            matrix.mins[:] = 0.0
        found = run_linear(BACKENDS[isa], pack(matrix), rows)
        np.testing.assert_allclose(found, rows @ dequantize(matrix).T, rtol=1e-6, atol=1e-2)


def test_broken_weights_are_refused():
    packed = pack(random_matrix(np.random.default_rng(10), "w4g32", 20, 64))
    backend = BACKENDS[ISAS[-1]]

    def load(data, num_outputs=20):
        weight = PackedWeight(packed.format, num_outputs, 64, False, 8, data)
        backend.load_weight(weight)

    load(packed.data)
    shifted = np.zeros(len(packed.data) + 128, dtype=np.uint8)
    start = -shifted.ctypes.data % 64 + 1
    misaligned = shifted[start : start + len(packed.data)]
    misaligned[:] = packed.data
    for data in (misaligned, packed.data[:-64], np.zeros_like(packed.data)):
        with pytest.raises(KernelError):
            load(data)
    with pytest.raises(KernelError):
        load(packed.data, num_outputs=21)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("token_ids", [0, 70]),
        ("token_ids", [-1, 0]),
        ("output_rows", [0, 2]),
        ("output_rows", [-1]),
        ("positions", [0]),
        ("positions", [0, -1]),
        ("token_ids", [0] * 9),
        ("slots", [0, 1]),
    ],
)
def test_inputs_outside_of_the_program_are_refused(field, value):
    backend = BACKENDS[ISAS[-1]]
    packed = pack(random_matrix(np.random.default_rng(11), "f32", 70, 32))

    def build(recorder):
        out = recorder.buffer(Rows.TOKENS, 32)
        recorder.embed(backend.load_weight(packed), out)
        return {}

    program, _ = record(backend, StepLimits(8, 8), build)
    inputs = step_inputs(2)
    program.run(inputs)
    setattr(inputs, field, np.array(value, dtype=np.int32))
    with pytest.raises(KernelError):
        program.run(inputs)
