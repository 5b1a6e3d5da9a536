"""What an int8 cache holds of keys and values, and how much room the formats take."""

import numpy as np
import pytest

from headrace.config.engine import MemoryConfig
from headrace.kernels.reference.rounding import round_to
from headrace.kernels.values import DType, KVLayout


def test_each_row_has_a_scale_of_its_own():
    rows = np.array([[1.0, -0.5, 0.25], [1000.0, -1.0, 3.0]], np.float32)
    rounded = round_to(rows, DType.INT8)
    for row, kept in zip(rows, rounded, strict=True):
        assert np.abs(kept - row).max() <= np.abs(row).max() * (0.5 + 2.0**-9) / 127
        np.testing.assert_array_equal(round_to(row[None], DType.INT8)[0], kept)


def test_what_was_rounded_rounds_to_itself():
    rng = np.random.default_rng(5)
    scales = np.exp(rng.uniform(-60, 60, (20_000, 1)))
    rows = (rng.standard_normal((20_000, 8)) * scales).astype(np.float32)
    rounded = round_to(rows, DType.INT8)
    np.testing.assert_array_equal(round_to(rounded, DType.INT8), rounded)


@pytest.mark.parametrize("fault", [np.nan, np.inf, -np.inf])
def test_a_fault_shows_in_its_row_alone(fault):
    rows = np.ones((3, 4), np.float32)
    rows[1, 2] = fault
    rounded = round_to(rows, DType.INT8)
    assert np.isnan(rounded[1]).all()
    assert np.isfinite(rounded[[0, 2]]).all()


def test_tiny_rows_are_zeros():
    assert not round_to(np.full((1, 4), 1e-35, np.float32), DType.INT8).any()


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(DType.F32, 1536), (DType.BF16, 768), (DType.F16, 768), (DType.INT8, 3 * 2 * 68)],
)
def test_bytes_per_token(dtype, expected):
    layout = KVLayout(1, 3, 64, 16, dtype, (0,), (1,))
    assert layout.bytes_per_token_layer == expected


def test_auto_is_f16():
    assert MemoryConfig().kv_format == "f16"
    assert MemoryConfig(kv_dtype="int8").kv_format == "int8"
