import numpy as np
import pytest
from tests.support.gemm_cases import KINDS, dequantize, random_matrix

from headrace.core.errors import KernelError
from headrace.kernels.formats import PackedWeight, QuantizedMatrix, WeightFormat
from headrace.kernels.packing import pack, packed_size, unpack, unpack_codes

SHAPES = [(16, 32), (1, 1), (17, 33), (37, 100), (48, 576), (5, 640)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_unpack_gives_back_what_was_packed(kind, shape):
    matrix = random_matrix(np.random.default_rng(1), kind, *shape)
    packed = pack(matrix)
    assert packed.data.ctypes.data % 64 == 0
    assert len(packed.data) == packed_size(packed.format, *shape, has_mins=packed.has_mins)
    if not isinstance(matrix, QuantizedMatrix):
        np.testing.assert_array_equal(unpack(packed), dequantize(matrix).astype(np.float32))
        return
    back = unpack_codes(packed)
    np.testing.assert_array_equal(back.codes, matrix.codes)
    np.testing.assert_array_equal(back.scales, matrix.scales)  # they were float16 already
    assert (back.mins is None) == (matrix.mins is None)
    assert back.offset == matrix.offset
    np.testing.assert_allclose(unpack(packed), dequantize(matrix), rtol=2**-22, atol=1e-7)


@pytest.mark.parametrize("magnitude", [1e-20, 1e-7, 1.0, 1e9])
def test_scales_of_any_magnitude_keep_eleven_bits(magnitude):
    rng = np.random.default_rng(2)
    scales = (rng.uniform(0.01, 1.0, (20, 4)) * magnitude).astype(np.float32)
    codes = rng.integers(0, 16, (20, 128), dtype=np.uint8)
    back = unpack_codes(pack(QuantizedMatrix(WeightFormat.W4G32, codes, scales, None, 8)))
    np.testing.assert_allclose(back.scales, scales, rtol=2**-11)


def _quantized(**changes) -> QuantizedMatrix:
    fields = {
        "format": WeightFormat.W4G32,
        "codes": np.zeros((2, 64), dtype=np.uint8),
        "scales": np.ones((2, 2), dtype=np.float32),
        "mins": None,
        "offset": 8,
    }
    return QuantizedMatrix(**(fields | changes))


@pytest.mark.parametrize(
    "matrix",
    [
        _quantized(codes=np.full((2, 64), 16, dtype=np.uint8)),
        _quantized(codes=np.zeros((2, 64), dtype=np.int8)),
        _quantized(codes=np.zeros((0, 64), dtype=np.uint8)),
        _quantized(scales=np.ones((2, 3), dtype=np.float32)),
        _quantized(scales=np.full((2, 2), np.nan, dtype=np.float32)),
        _quantized(mins=np.ones((2, 1), dtype=np.float32)),
        _quantized(offset=-1),
        np.zeros((3, 3), dtype=np.float64),
        np.zeros(3, dtype=np.float32),
    ],
)
def test_pack_refuses_what_makes_no_sense(matrix):
    with pytest.raises(KernelError):
        pack(matrix)


def test_unpack_refuses_foreign_bytes():
    packed = pack(_quantized())
    for data in (packed.data[:-1], np.zeros_like(packed.data)):
        broken = PackedWeight(packed.format, 2, 64, has_mins=False, offset=8, data=data)
        with pytest.raises(KernelError):
            unpack(broken)
    with pytest.raises(KernelError):
        unpack_codes(pack(np.ones((2, 2), dtype=np.float32)))


def test_minimums_and_an_offset_are_not_both_there():
    matrix = random_matrix(np.random.default_rng(12), "w4g32-mins", 16, 32)
    both = QuantizedMatrix(matrix.format, matrix.codes, matrix.scales, matrix.mins, offset=8)
    with pytest.raises(KernelError, match="not both"):
        pack(both)
