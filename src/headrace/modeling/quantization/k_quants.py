"""GGUF's super-blocks of 256: Q4_K, Q5_K, Q6_K.

Every function fills preallocated arrays from n super-blocks: codes u8 [n, 256], scales and mins f32
[n, 8] (groups of 32) or [n, 16] (groups of 16). Layouts after ggml `ggml-common.h` and its
`dequantize_row_*` reference code: 64 consecutive codes share 32 bytes, the first half in low nibbles.
"""

import numpy as np

from headrace.modeling.quantization.legacy_blocks import Bytes, Floats, halves, split_nibbles


def q4_k(blocks: Bytes, codes: Bytes, scales: Floats, mins: Floats | None) -> None:
    """f16 d, f16 dmin, u8 packed[12], u8 q[128]."""
    assert mins is not None
    _scales_and_mins(blocks, scales, mins)
    quarters = np.ascontiguousarray(blocks[:, 16:144]).reshape(-1, 32)
    split_nibbles(quarters, codes.reshape(-1, 64))


def q5_k(blocks: Bytes, codes: Bytes, scales: Floats, mins: Floats | None) -> None:
    """f16 d, f16 dmin, u8 packed[12], u8 qh[32], u8 q[128]; bit g of qh[l] belongs to code 32 g + l."""
    assert mins is not None
    _scales_and_mins(blocks, scales, mins)
    quarters = np.ascontiguousarray(blocks[:, 48:176]).reshape(-1, 32)
    split_nibbles(quarters, codes.reshape(-1, 64))
    high = blocks[:, 16:48]
    for group in range(8):
        bit = (high >> np.uint8(group)) & np.uint8(1)
        codes[:, 32 * group : 32 * group + 32] |= bit << np.uint8(4)


def q6_k(blocks: Bytes, codes: Bytes, scales: Floats, mins: Floats | None) -> None:
    """u8 ql[128], u8 qh[64], i8 scale[16], f16 d; the offset is 32.

    Each half of 128 codes has 64 bytes of low nibbles and 32 bytes with four 2-bit highs.
    """
    sub_scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    np.multiply(halves(blocks, 208), sub_scales, out=scales)
    low = np.ascontiguousarray(blocks[:, :128]).reshape(-1, 64)
    split_nibbles(low, codes.reshape(-1, 128))
    high = np.ascontiguousarray(blocks[:, 128:192]).reshape(-1, 32)
    half = codes.reshape(-1, 128)
    for quarter in range(4):
        bits = (high >> np.uint8(2 * quarter)) & np.uint8(3)
        half[:, 32 * quarter : 32 * quarter + 32] |= bits << np.uint8(4)


def _scales_and_mins(blocks: Bytes, scales: Floats, mins: Floats) -> None:
    """Scale = d * s and min = -dmin * m, from eight pairs of 6-bit (s, m) in 12 bytes."""
    packed = np.ascontiguousarray(blocks[:, 4:16])
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    low_six, low_four, four, six = np.uint8(63), np.uint8(15), np.uint8(4), np.uint8(6)
    d, minus_dmin = halves(blocks, 0), -halves(blocks, 2)
    np.multiply(d, first & low_six, out=scales[:, :4])
    np.multiply(minus_dmin, second & low_six, out=mins[:, :4])
    np.multiply(d, (third & low_four) | (first >> six << four), out=scales[:, 4:])
    np.multiply(minus_dmin, (third >> four) | (second >> six << four), out=mins[:, 4:])
