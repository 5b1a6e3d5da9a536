"""How values are rounded to the narrow dtypes: the one definition that every back end must match.

bf16 and f16 round to nearest, ties to even (IEEE 754). Q8 looks at one row only, in groups of 32
elements from the row's start; a last group may be shorter.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.kernels.values import DType

#: Elements of a row that share one Q8 scale.
Q8_GROUP = 32

#: Below this the reciprocal of a Q8 scale would overflow.
SMALLEST_MAGNITUDE = np.float32(2.0**-100)

#: Above this a row of codes of 16 bits counts as infinite.
LARGEST_MAGNITUDE = np.float32(2.0**100)

#: Of the codes of 16-bit keys (fewer where their norm would be too long) and values.
KEY_BITS, VALUE_BITS = 14, 13


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """Rows of int8 codes: value[t, i] = scales[t, i // 32] * codes[t, i]."""

    codes: NDArray[np.int8]  # [*, K]
    scales: NDArray[np.float32]  # [*, ceil(K / 32)]

    def values(self) -> NDArray[np.float32]:
        """The float32 values that the codes stand for, [*, K]."""
        width = self.codes.shape[1]
        spread = np.repeat(self.scales, Q8_GROUP, axis=1)[:, :width]
        return spread * self.codes.astype(np.float32)


def to_bf16_bits(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper half of each float32, rounded to nearest even; a NaN stays a NaN."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(x), quiet, rounded).astype(np.uint16)


def from_bf16_bits(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The float32 whose upper half these bits are."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def round_to(x: NDArray[np.float32], dtype: DType) -> NDArray[np.float32]:
    """The nearest values that `dtype` (a float one) holds, as float32; beyond its range lies infinity."""
    if dtype is DType.BF16:
        return from_bf16_bits(to_bf16_bits(x))
    if dtype is DType.F16:
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(np.float32)
    return x


def round_keys(x: NDArray[np.float32], dtype: DType) -> NDArray[np.float32]:
    """What a cache of `dtype` holds of keys [*, D], one row per token and KV head."""
    return _round_keys_16(x) if dtype is DType.INT16 else round_values(x, dtype)


def round_values(x: NDArray[np.float32], dtype: DType) -> NDArray[np.float32]:
    """What a cache of `dtype` holds of values [*, D], one row per token and KV head."""
    if dtype is DType.INT16:
        step = _smallest_step(x, VALUE_BITS)
        rounded: NDArray[np.float32] = step * np.rint(_sound(x) / _usable(step))
        return rounded
    return _round_rows_8(x) if dtype is DType.INT8 else round_to(x, dtype)


def _sound(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows that a step can describe; zeros in place of others."""
    largest = np.abs(x).max(axis=-1, keepdims=True)
    is_sound = (largest >= SMALLEST_MAGNITUDE) & (largest <= LARGEST_MAGNITUDE)
    return np.where(is_sound, x, np.float32(0))


def _usable(step: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.where(step > 0, step, np.float32(1))


def _smallest_step(x: NDArray[np.float32], bits: int) -> NDArray[np.float32]:
    """Per row the smallest power of two with which no code rint(x / step) is rounded up to 2^bits.

    What was stored with it quantises to itself. 0 for rows whose largest magnitude is below
    `SMALLEST_MAGNITUDE`, NaN for those above `LARGEST_MAGNITUDE`.
    """
    largest = np.abs(x).max(axis=-1, keepdims=True)
    power = (largest.view(np.uint32) + np.uint32(1 << (23 - bits))) & np.uint32(0x7F800000)
    step = power.view(np.float32) * np.float32(2.0 ** (1 - bits))
    step = np.where(largest < SMALLEST_MAGNITUDE, np.float32(0), step)
    found: NDArray[np.float32] = np.where(largest <= LARGEST_MAGNITUDE, step, np.float32(np.nan))
    return found


def _round_keys_16(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Codes of 16 bits: the smallest step of 14 or fewer with which sum((|code| >> 4)^2) <= 2047^2.

    The norm of a row's codes is then little above 2^15 at most, and the product of two rows fits 32 bits by
    the inequality of Cauchy and Schwarz.
    """
    step, rows = _smallest_step(x, KEY_BITS), _sound(x)
    while True:
        codes = np.rint(rows / _usable(step))
        is_long = ((np.abs(codes).astype(np.int32) >> 4) ** 2).sum(-1, keepdims=True) > 2047**2
        if not is_long.any():
            rounded: NDArray[np.float32] = step * codes
            return rounded
        step = np.where(is_long, 2 * step, step)


def _round_rows_8(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Codes of 8 bits for rows [*, D], one per token and KV head.

    scale = max|x| / 127, its mantissa rounded to 16 bits (so that 127 * scale is exact, and what was stored
    quantises to itself); code = rint(x * (127 / max|x|)). Small and faulty rows as in `quantize_rows`.
    """
    largest = np.abs(x).max(axis=-1, keepdims=True)
    is_usable = np.isfinite(largest) & (largest >= SMALLEST_MAGNITUDE)
    usable = np.where(is_usable, largest, np.float32(1))
    bits = (usable / np.float32(127)).view(np.uint32)
    scale = ((bits + np.uint32(0x80)) & np.uint32(0xFFFFFF00)).view(np.float32)
    codes = np.rint(np.where(is_usable, x, 0) * (np.float32(127) / usable))
    fault = np.where(largest < SMALLEST_MAGNITUDE, np.float32(0), np.float32(np.nan))
    return np.where(is_usable, scale * codes, fault).astype(np.float32)


def quantize_rows(x: NDArray[np.float32]) -> QuantizedRows:
    """Per group of 32: scale = max|x| / 127, code = rint(x * (127 / max|x|)), all in float32.

    A group whose largest magnitude is below `SMALLEST_MAGNITUDE` counts as zeros: scale 0, codes 0. A
    group that holds NaN or infinity has such a scale, so that the fault shows in every result.
    """
    num_rows, width = x.shape
    num_groups = -(-width // Q8_GROUP)
    padded = np.zeros((num_rows, num_groups * Q8_GROUP), np.float32)
    padded[:, :width] = x
    groups = padded.reshape(num_rows, num_groups, Q8_GROUP)
    largest = np.abs(groups).max(axis=2)
    is_usable = np.isfinite(largest) & (largest >= SMALLEST_MAGNITUDE)
    inverse = np.where(is_usable, np.float32(127.0) / np.where(is_usable, largest, 1), 0)
    usable_groups = np.where(is_usable[:, :, None], groups, 0)
    codes = np.rint(usable_groups * inverse.astype(np.float32)[:, :, None])
    scales = np.where(largest < SMALLEST_MAGNITUDE, 0, largest / np.float32(127.0))
    flat = codes.reshape(num_rows, -1)[:, :width].astype(np.int8)
    return QuantizedRows(flat, scales.astype(np.float32))
