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
    """The nearest values that `dtype` (not Q8) holds, as float32; beyond its range lies infinity.

    INT8: each row of the last axis has a scale of its own.
    """
    if dtype is DType.INT8:
        return round_kv_rows(x)
    if dtype is DType.BF16:
        return from_bf16_bits(to_bf16_bits(x))
    if dtype is DType.F16:
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(np.float32)
    return x


def round_kv_rows(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """What an int8 cache holds of rows [*, D], one per token and KV head.

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
