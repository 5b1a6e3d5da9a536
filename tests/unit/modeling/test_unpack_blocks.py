"""Every unpacker against the reference package's dequantisation, bit by bit."""

import gguf
import gguf.quants
import numpy as np
import pytest

from headrace.core.errors import ModelLoadError, UnsupportedModelError
from headrace.kernels.formats import QuantizedMatrix, WeightFormat
from headrace.kernels.packing import pack, unpack_codes
from headrace.modeling.quantization.dequantize import dequantize
from headrace.modeling.quantization.unpack import UNPACKERS, unpack
from headrace.modeling.weights.ggml_types import GGML_TYPES, SUPPORTED_TYPES

K = 512


def random_blocks(type_name: str, num_rows: int, seed: int = 0) -> np.ndarray:
    """Random bytes with sane f16 numbers where the format has them: u8 [rows, row bytes]."""
    unpacker = UNPACKERS[type_name]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(
        0, 256, (num_rows, K // unpacker.block_size, unpacker.block_bytes), np.uint8
    )
    starts = {"Q6_K": [208], "Q4_0": [0], "Q5_0": [0], "Q8_0": [0]}.get(type_name, [0, 2])
    for start in starts:
        numbers = rng.standard_normal(blocks.shape[:2]).astype(np.float16)
        blocks[:, :, start : start + 2] = numbers[..., None].view(np.uint8)
    return blocks.reshape(num_rows, -1)


@pytest.mark.parametrize("type_name", UNPACKERS)
def test_equals_the_reference_bit_by_bit(type_name):
    raw = random_blocks(type_name, 37)
    wanted = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[type_name])
    matrix = unpack(type_name, memoryview(raw).cast("B"), K, (0, 37))
    assert isinstance(matrix, QuantizedMatrix)
    assert matrix.codes.shape == (37, K)
    assert matrix.codes.max() < (16 if matrix.format is WeightFormat.W4G32 else 256)
    assert (matrix.mins is None) == (matrix.offset != 0)
    np.testing.assert_array_equal(dequantize(matrix), wanted)


@pytest.mark.parametrize("type_name", UNPACKERS)
def test_row_ranges_are_rows_of_the_whole(type_name):
    raw = memoryview(random_blocks(type_name, 20)).cast("B")
    whole = dequantize(unpack(type_name, raw, K, (0, 20)))
    np.testing.assert_array_equal(dequantize(unpack(type_name, raw, K, (3, 17))), whole[3:17])
    assert dequantize(unpack(type_name, raw, K, (5, 5))).shape == (0, K)


@pytest.mark.parametrize("type_name", UNPACKERS)
def test_packing_keeps_codes_and_scales_to_eleven_bits(type_name):
    raw = memoryview(random_blocks(type_name, 20)).cast("B")
    matrix = unpack(type_name, raw, K, (0, 20))
    packed = unpack_codes(pack(matrix))
    np.testing.assert_array_equal(packed.codes, matrix.codes)
    assert packed.offset == matrix.offset
    np.testing.assert_allclose(packed.scales, matrix.scales, rtol=2**-11, atol=0)
    if matrix.mins is not None:
        np.testing.assert_allclose(packed.mins, matrix.mins, rtol=2**-11, atol=0)


def test_slices_inside_the_unpacker_join_without_a_seam(monkeypatch):
    raw = memoryview(random_blocks("Q4_K", 50)).cast("B")
    whole = dequantize(unpack("Q4_K", raw, K, (0, 50)))
    monkeypatch.setattr("headrace.modeling.quantization.unpack.SLICE_CODES", 7 * 256)
    np.testing.assert_array_equal(dequantize(unpack("Q4_K", raw, K, (0, 50))), whole)


def test_floats_are_views():
    values = np.random.default_rng(1).standard_normal((5, 8)).astype(np.float32)
    bf16 = (values.view(np.uint32) >> 16).astype(np.uint16)
    for type_name, array in (("F32", values), ("F16", values.astype(np.float16)), ("BF16", bf16)):
        matrix = unpack(type_name, memoryview(array).cast("B"), 8, (1, 4))
        assert np.shares_memory(matrix, array)
        np.testing.assert_array_equal(matrix, array[1:4])
    widened = dequantize(bf16)
    assert widened.dtype == np.float32
    np.testing.assert_array_equal(widened, (bf16.astype(np.uint32) << 16).view(np.float32))


def test_unknown_types_are_named_with_those_supported():
    with pytest.raises(UnsupportedModelError, match=r"blk\.0 has the type IQ2_XS.*F32.*Q6_K"):
        unpack("IQ2_XS", memoryview(b"x" * 74), 256, (0, 1), name="blk.0")


def test_too_few_bytes_and_odd_rows():
    with pytest.raises(ModelLoadError, match="does not hold the rows 0 to 3"):
        unpack("Q8_0", memoryview(b"x" * 68), 32, (0, 3))
    with pytest.raises(ModelLoadError, match="rows of 33"):
        unpack("Q8_0", memoryview(b"x" * 68), 33, (0, 1))


def test_the_two_tables_of_types_agree():
    sizes = {block.name: (block.block_size, block.block_bytes) for block in GGML_TYPES.values()}
    for name, unpacker in UNPACKERS.items():
        assert sizes[name] == (unpacker.block_size, unpacker.block_bytes)
    assert set(SUPPORTED_TYPES) == {*UNPACKERS, "F32", "F16", "BF16"}


def test_type_numbers_agree_with_the_reference():
    for number, block in GGML_TYPES.items():
        kind = gguf.GGMLQuantizationType(number)
        assert kind.name == block.name
        assert gguf.GGML_QUANT_SIZES[kind] == (block.block_size, block.block_bytes)
