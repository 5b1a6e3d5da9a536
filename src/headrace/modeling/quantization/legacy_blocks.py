"""GGUF's blocks of 32: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1.

Every function fills preallocated arrays from n blocks: codes u8 [n, 32], scales f32 [n, 1], mins f32
[n, 1]. Layouts after ggml `ggml-common.h`: in a block of 4- or 5-bit codes, byte j holds code j in its
low nibble and code j + 16 in its high one; bit j of the `qh` word is the fifth bit of code j.
"""

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def halves(blocks: Bytes, start: int) -> Floats:
    """The f16 number at byte `start` of each block, as f32 [n, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)


def split_nibbles(packed: Bytes, codes: Bytes) -> None:
    """codes[:, :h] = low nibbles and codes[:, h:] = high nibbles of packed [n, h].

    Four bytes at a time, with the long axis innermost: numpy's cost per loop would otherwise dominate.
    """
    words = np.ascontiguousarray(packed).view(np.uint32)  # [n, h / 4]
    target = codes.view(np.uint32)  # [n, h / 2]
    num_words = words.shape[1]
    mask = np.uint32(0x0F0F0F0F)
    for j in range(num_words):
        np.bitwise_and(words[:, j], mask, out=target[:, j])
        np.bitwise_and(words[:, j] >> np.uint32(4), mask, out=target[:, num_words + j])


def q8_0(blocks: Bytes, codes: Bytes, scales: Floats, mins: Floats | None) -> None:
    """f16 d, i8 q[32]; codes are q + 128."""
    scales[:] = halves(blocks, 0)
    words = np.ascontiguousarray(blocks[:, 2:]).view(np.uint64)
    np.bitwise_xor(words, np.uint64(0x8080808080808080), out=codes.view(np.uint64))


def q4_0(blocks: Bytes, codes: Bytes, scales: Floats, mins: Floats | None) -> None:
    """f16 d, u8 q[16]; the offset is 8."""
    scales[:] = halves(blocks, 0)
    split_nibbles(blocks[:, 2:], codes)


def q4_1(blocks: Bytes, codes: Bytes, scales: Floats, mins: Floats | None) -> None:
    """f16 d, f16 m, u8 q[16]."""
    assert mins is not None
    scales[:] = halves(blocks, 0)
    mins[:] = halves(blocks, 2)
    split_nibbles(blocks[:, 4:], codes)


def q5_0(blocks: Bytes, codes: Bytes, scales: Floats, mins: Floats | None) -> None:
    """f16 d, u32 qh, u8 q[16]; the offset is 16."""
    scales[:] = halves(blocks, 0)
    split_nibbles(blocks[:, 6:], codes)
    _add_fifth_bits(blocks[:, 2:6], codes)


def q5_1(blocks: Bytes, codes: Bytes, scales: Floats, mins: Floats | None) -> None:
    """f16 d, f16 m, u32 qh, u8 q[16]."""
    assert mins is not None
    scales[:] = halves(blocks, 0)
    mins[:] = halves(blocks, 2)
    split_nibbles(blocks[:, 8:], codes)
    _add_fifth_bits(blocks[:, 4:8], codes)


def _add_fifth_bits(high: Bytes, codes: Bytes) -> None:
    bits = np.unpackbits(np.ascontiguousarray(high), axis=1, bitorder="little")  # [n, 32]
    codes |= bits << np.uint8(4)
