"""What an int8 cache holds of keys and values, and how much room the formats take."""

import numpy as np
import pytest

from headrace.config.engine import MemoryConfig
from headrace.kernels.reference.rounding import round_keys, round_values
from headrace.kernels.values import DType, KVLayout


def test_each_row_has_a_scale_of_its_own():
    rows = np.array([[1.0, -0.5, 0.25], [1000.0, -1.0, 3.0]], np.float32)
    rounded = round_values(rows, DType.INT8)
    for row, kept in zip(rows, rounded, strict=True):
        assert np.abs(kept - row).max() <= np.abs(row).max() * (0.5 + 2.0**-9) / 127
        np.testing.assert_array_equal(round_values(row[None], DType.INT8)[0], kept)


def test_what_was_rounded_rounds_to_itself():
    rng = np.random.default_rng(5)
    scales = np.exp(rng.uniform(-60, 60, (20_000, 1)))
    rows = (rng.standard_normal((20_000, 8)) * scales).astype(np.float32)
    rounded = round_values(rows, DType.INT8)
    np.testing.assert_array_equal(round_values(rounded, DType.INT8), rounded)


@pytest.mark.parametrize("fault", [np.nan, np.inf, -np.inf])
def test_a_fault_shows_in_its_row_alone(fault):
    rows = np.ones((3, 4), np.float32)
    rows[1, 2] = fault
    rounded = round_values(rows, DType.INT8)
    assert np.isnan(rounded[1]).all()
    assert np.isfinite(rounded[[0, 2]]).all()


def test_tiny_rows_are_zeros():
    assert not round_values(np.full((1, 4), 1e-35, np.float32), DType.INT8).any()


def test_keys_of_16_bits_have_a_step_of_their_own():
    rows = np.array([[1.0, -0.5, 0.25], [1000.0, -1.0, 3.0]], np.float32)
    rounded = round_keys(rows, DType.INT16)
    for row, kept in zip(rows, rounded, strict=True):
        assert np.abs(kept - row).max() <= 0.5 * np.abs(row).max() * 2.0**-12
        np.testing.assert_array_equal(round_keys(row[None], DType.INT16)[0], kept)


@pytest.mark.parametrize("width", [1, 8, 64, 1024])
def test_keys_of_16_bits_round_to_themselves(width):
    rng = np.random.default_rng(6)
    scales = np.exp(rng.uniform(-60, 60, (3_000, 1)))
    rows = rng.standard_normal((3_000, width)) * scales
    rows[::3] = scales[::3]  # all alike: the longest for their largest
    rows[::7] *= np.where(np.arange(width) == 0, 1, 1e-3)  # one alone
    rows[::5] = 2.0 ** np.rint(np.log2(scales[::5])) * (
        2 - 2.0**-20
    )  # would round up to a power of two
    rounded = round_keys(rows.astype(np.float32), DType.INT16)
    np.testing.assert_array_equal(round_keys(rounded, DType.INT16), rounded)


@pytest.mark.parametrize("fault", [np.nan, np.inf, -np.inf, 1e31])
def test_a_faulty_key_of_16_bits_shows_alone(fault):
    rows = np.ones((3, 4), np.float32)
    rows[1, 2] = fault
    rows[2] = 1e-35
    rounded = round_keys(rows, DType.INT16)
    assert np.isnan(rounded[1]).all()
    assert (rounded[0] == 1).all()
    assert not rounded[2].any()


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (DType.F32, 1536),
        (DType.BF16, 768),
        (DType.F16, 768),
        (DType.INT8, 3 * 2 * 68),
        (DType.INT16, 3 * 2 * 132),
    ],
)
def test_bytes_per_token(dtype, expected):
    layout = KVLayout(1, 3, 64, 16, dtype, (0,), (1,))
    assert layout.bytes_per_token_layer == expected


def test_auto_is_f16():
    assert MemoryConfig().kv_format == "int16"
    assert MemoryConfig(kv_dtype="int8").kv_format == "int8"
