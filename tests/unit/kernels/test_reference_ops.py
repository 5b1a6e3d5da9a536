"""The specification itself, against definitions written another way."""

from dataclasses import replace

import numpy as np
import pytest
from tests.support.op_run import Batch, rows_only

from headrace.core.errors import KernelError
from headrace.kernels.formats import QuantizedMatrix, WeightFormat
from headrace.kernels.packing import pack
from headrace.kernels.reference import attention, linear
from headrace.kernels.reference.backend import ReferenceBackend
from headrace.kernels.reference.rounding import quantize_rows, round_to, to_bf16_bits
from headrace.kernels.values import DType, KVLayout, Rows, StepLimits


def quantized(weight_format, num_outputs=5, num_inputs=96, *, has_mins=False, offset=0, seed=0):
    rng = np.random.default_rng(seed)
    groups = -(-num_inputs // weight_format.group_size)
    largest = 16 if weight_format is WeightFormat.W4G32 else 256
    return QuantizedMatrix(
        weight_format,
        rng.integers(0, largest, (num_outputs, num_inputs)).astype(np.uint8),
        rng.uniform(0.01, 0.1, (num_outputs, groups)).astype(np.float16).astype(np.float32),
        -rng.uniform(0.1, 0.5, (num_outputs, groups)).astype(np.float16).astype(np.float32)
        if has_mins
        else None,
        offset,
    )


MATRICES = [
    quantized(WeightFormat.W4G32, offset=8),
    quantized(WeightFormat.W4G32, has_mins=True),
    quantized(WeightFormat.W8G32, offset=128),
    quantized(WeightFormat.W8G16, offset=128, num_inputs=80),
    quantized(WeightFormat.W8G16, has_mins=True, num_inputs=48),
]


@pytest.mark.parametrize("matrix", MATRICES)
def test_integer_dots_are_the_product_of_the_dequantised_operands(matrix):
    x = np.random.default_rng(1).standard_normal((3, matrix.codes.shape[1]), dtype=np.float32)
    rows = quantize_rows(x)
    wide = linear.dequantize(matrix).astype(np.float64)
    expected = rows.values().astype(np.float64) @ wide.T
    # Each group adds two roundings of a running sum that stays below the sum of magnitudes.
    magnitude = np.abs(rows.values()).astype(np.float64) @ np.abs(wide).T + 100
    bound = 4 * matrix.scales.shape[1] * 2.0**-24 * magnitude
    assert np.all(np.abs(linear.linear_quantized(rows, matrix) - expected) <= bound)


@pytest.mark.parametrize("matrix", MATRICES)
def test_packed_weights_load_as_they_were(matrix):
    direct = ReferenceBackend().load_weight(matrix)
    packed = ReferenceBackend().load_weight(pack(matrix))
    ids = np.array([4, 0, 2])
    np.testing.assert_array_equal(packed.rows(ids), direct.rows(ids))
    inexact = ReferenceBackend(exact=False)
    np.testing.assert_array_equal(
        inexact.load_weight(pack(matrix)).matrix, linear.dequantize(matrix)
    )
    assert inexact.operand_dtype(matrix.format) is DType.F32
    assert ReferenceBackend().operand_dtype(matrix.format) is DType.Q8


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint16])
def test_float_weights_are_widened(dtype):
    values = np.array([[1.5, -2.0], [0.25, 3.0]], np.float32)
    matrix = to_bf16_bits(values) if dtype == np.uint16 else values.astype(dtype)
    for source in (matrix, pack(matrix)):
        np.testing.assert_array_equal(ReferenceBackend().load_weight(source).matrix, values)


def test_weights_of_no_kernel_format_are_refused():
    with pytest.raises(KernelError, match="int64"):
        ReferenceBackend().load_weight(np.zeros((2, 2), np.int64))


def test_q8_rows_are_within_half_a_step():
    x = np.random.default_rng(0).standard_normal((4, 70), dtype=np.float32) * 5
    x[1, :32] = 0
    x[2, 40] = 1e-35
    rows = quantize_rows(x)
    assert rows.scales.shape == (4, 3)
    assert rows.scales[1, 0] == 0
    assert not rows.codes[1, :32].any()
    steps = np.repeat(rows.scales, 32, axis=1)[:, :70]
    assert np.all(np.abs(rows.values() - x) <= steps * 0.5001)
    assert np.abs(rows.codes).max() == 127


def test_a_faulty_group_has_a_faulty_scale():
    x = np.ones((2, 64), np.float32)
    x[0, 3], x[1, 40] = np.nan, -np.inf
    scales = quantize_rows(x).scales
    assert np.isnan(scales[0, 0])
    assert np.isinf(scales[1, 1])
    assert np.isfinite(scales[[0, 1], [1, 0]]).all()


@pytest.mark.parametrize("bits", [0x3F808000, 0x3F818000, 0x3F807FFF, 0x7F7FFFFF, 0x00008001])
def test_bf16_rounds_to_nearest_even(bits):
    value = np.array([bits], np.uint32).view(np.float32)
    rounded = round_to(value, DType.BF16)
    down = np.array([bits & 0xFFFF0000], np.uint32).view(np.float32).astype(np.float64)
    up = np.array([(bits & 0xFFFF0000) + 0x10000], np.uint32).view(np.float32).astype(np.float64)
    middle = (down + np.where(np.isinf(up), 2.0**128, up)) / 2
    is_even = (bits >> 16) % 2 == 0
    expected = down if value < middle or (value == middle and is_even) else up
    assert rounded[0] == expected[0]
    assert np.isnan(round_to(np.array([np.nan], np.float32), DType.BF16)[0])


def test_attention_is_a_softmax_over_visible_keys():
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((4, 8)).astype(np.float32)
    keys, values = rng.standard_normal((2, 10, 2, 8)).astype(np.float32)
    parameters = attention.AttentionParameters(scale=0.5, soft_cap=2.0)
    output, probabilities = attention.attend(queries, keys, values, parameters)
    for head in range(4):
        scores = [2 * np.tanh(0.25 * float(queries[head] @ key)) for key in keys[:, head // 2]]
        weights = np.exp(scores) / np.exp(scores).sum()
        np.testing.assert_allclose(probabilities[head], weights, rtol=1e-5)
        np.testing.assert_allclose(
            output[head], weights @ values[:, head // 2], rtol=1e-5, atol=1e-6
        )


def test_which_keys_a_token_sees():
    visible = attention.visible_keys
    assert visible(5, 9, 0, is_causal=True) == (0, 6)
    assert visible(5, 9, 3, is_causal=True) == (3, 6)
    assert visible(5, 9, 1, is_causal=True) == (5, 6)
    assert visible(5, 9, 0, is_causal=False) == (0, 9)
    assert visible(5, 9, 3, is_causal=False) == (3, 8)
    assert visible(1, 9, 3, is_causal=False) == (0, 4)


LAYOUT = KVLayout(1, 1, 16, 16, DType.F32, (0,), (4,))


def small_program(backend):
    cache = backend.create_kv_cache(LAYOUT)
    recorder = backend.recorder(StepLimits(40, 2), cache)
    x = recorder.buffer(Rows.TOKENS, 16)
    narrow = recorder.buffer(Rows.TOKENS, 16, DType.F16)
    recorder.embed(backend.load_weight(np.ones((50, 16), np.float32)), x)
    recorder.convert(x, narrow)
    return recorder.finish(), x, narrow


def test_reading_needs_a_run_and_a_float_buffer():
    program, x, narrow = small_program(ReferenceBackend())
    with pytest.raises(KernelError, match="has not run"):
        program.read(x, 1)
    program.run(rows_only(3).step_inputs())
    assert program.read(x, 2).shape == (2, 16)
    with pytest.raises(KernelError, match="f16"):
        program.read(narrow, 1)


def test_steps_that_break_limits_or_shapes_are_refused():
    program, _, _ = small_program(ReferenceBackend())
    table = np.array([[0, 1, -1], [2, 3, -1]], np.int32)
    good = Batch((17, 1), (0, 20), (table,)).step_inputs(output_rows=[17])
    program.run(good)
    absent = np.array([[0, -1, -1], [2, 3, -1]], np.int32)
    unknown = np.array([[0, 9, -1], [2, 3, -1]], np.int32)
    for bad in (
        replace(good, token_ids=np.zeros(41, np.int32)),
        replace(good, positions=good.positions[:-1]),
        replace(good, query_starts=np.array([0, 17, 17], np.int32)),
        replace(good, query_starts=np.array([0, 18], np.int32)),
        replace(good, key_starts=np.array([0, -1], np.int32)),
        replace(good, key_starts=np.array([0, 48], np.int32)),
        replace(good, slots=np.array([0, 2], np.int32)),
        replace(good, output_rows=np.array([18], np.int32)),
        replace(good, output_rows=np.zeros(3, np.int32)),
        replace(good, block_tables=()),
        replace(good, block_tables=(absent,)),
        replace(good, block_tables=(unknown,)),
    ):
        with pytest.raises(KernelError):
            program.run(bad)


def test_a_cache_of_another_back_end_is_refused():
    with pytest.raises(KernelError, match="another back end"):
        ReferenceBackend().recorder(StepLimits(1, 1), object())
