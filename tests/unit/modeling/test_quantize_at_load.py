"""Quantising float weights at load: error bounds, edge groups, and what is left alone."""

import gguf
import gguf.quants
import numpy as np
import pytest

from headrace.core.errors import ConfigError
from headrace.kernels.formats import QuantizedMatrix, WeightFormat
from headrace.modeling.quantization.dequantize import dequantize
from headrace.modeling.quantization.quantize import quantize


def weights(shape=(64, 256), seed=0):
    return (np.random.default_rng(seed).standard_normal(shape) * 0.02).astype(np.float32)


def relative_error(matrix, wanted):
    return np.sqrt(np.mean((dequantize(matrix) - wanted) ** 2) / np.mean(wanted**2))


def test_int8_is_within_half_a_step():
    wanted = weights()
    matrix = quantize(wanted, "int8")
    assert (matrix.format, matrix.offset, matrix.mins) == (WeightFormat.W8G32, 128, None)
    assert matrix.codes.min() >= 1
    error = np.abs(dequantize(matrix) - wanted).reshape(64, 8, 32)
    # Half a step, and what clipping at +-127 with a scale rounded down to f16 can add.
    bound = matrix.scales[..., None] * (0.5 + 127 * 2.0**-11)
    assert (error <= bound).all()


def test_int4_is_better_than_the_plain_grid():
    wanted = weights((256, 512))
    matrix = quantize(wanted, "int4")
    assert (matrix.format, matrix.offset) == (WeightFormat.W4G32, 0)
    assert matrix.codes.max() == 15
    kind = gguf.GGMLQuantizationType.Q4_1
    plain = gguf.quants.dequantize(gguf.quants.quantize(wanted, kind), kind)
    plain_error = np.sqrt(np.mean((plain - wanted) ** 2) / np.mean(wanted**2))
    assert relative_error(matrix, wanted) < 0.96 * plain_error


@pytest.mark.parametrize("option", ["int8", "int4"])
def test_scales_are_float16_numbers(option):
    matrix = quantize(weights(), option)
    for numbers in (matrix.scales, matrix.mins):
        if numbers is not None:
            np.testing.assert_array_equal(numbers, numbers.astype(np.float16))


@pytest.mark.parametrize("option", ["int8", "int4"])
def test_groups_without_a_range(option):
    wanted = weights((4, 64))
    wanted[0] = 0
    wanted[1] = 0.5
    wanted[2] = -0.25
    wanted[3, :32] = 0
    wanted[3, 5] = 1.0
    found = dequantize(quantize(wanted, option))
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found[0], 0)
    np.testing.assert_allclose(found[1:3], wanted[1:3], rtol=2**-9)
    np.testing.assert_allclose(found[3, :32], wanted[3, :32], atol=2e-3)


def test_every_float_type_gives_the_same_codes():
    bits = (weights().view(np.uint32) >> 16).astype(np.uint16)
    as_f32 = dequantize(bits)
    for option in ("int8", "int4"):
        first, second = quantize(bits, option), quantize(as_f32, option)
        np.testing.assert_array_equal(first.codes, second.codes)
        np.testing.assert_array_equal(first.scales, second.scales)


def test_slices_join_without_a_seam(monkeypatch):
    wanted = weights((40, 96))
    whole = {option: dequantize(quantize(wanted, option)) for option in ("int8", "int4")}
    monkeypatch.setattr("headrace.modeling.quantization.quantize.SLICE_GROUPS", 7)
    for option, expected in whole.items():
        np.testing.assert_array_equal(dequantize(quantize(wanted, option)), expected)


def test_what_is_left_alone():
    quantised = quantize(weights(), "int8")
    assert quantize(quantised, "int4") is quantised
    odd = weights((4, 40))
    assert quantize(odd, "int4") is odd
    kept = quantize(weights(), "int4", min_bits=8)
    assert isinstance(kept, QuantizedMatrix)
    assert kept.format is WeightFormat.W8G32
    with pytest.raises(ConfigError, match="int8 or int4, not 'fp8'"):
        quantize(weights(), "fp8")


def test_weights_that_are_not_numbers_show_in_the_scales():
    for option in ("int8", "int4"):
        for bad in (np.nan, np.inf, 1e9):
            wanted = weights((2, 64))
            wanted[1, 40] = bad
            matrix = quantize(wanted, option)
            finite = np.isfinite(matrix.scales)
            if matrix.mins is not None:
                finite &= np.isfinite(matrix.mins)
            assert not finite[1, 1]
            assert finite[0].all()
