"""Specification of `linear`: integer dots inside a group, float32 across groups, in a fixed order."""

import numpy as np
from numpy.typing import NDArray

from headrace.kernels.formats import QuantizedMatrix
from headrace.kernels.reference.rounding import Q8_GROUP, QuantizedRows

Float32 = NDArray[np.float32]


def fused_multiply_add(a: Float32, b: Float32, c: Float32) -> Float32:
    """Give a * b + c with one rounding to float32.

    The product of two float32 is exact in float64. The sum is rounded twice (float64, then float32),
    which differs from a hardware fma in about one case of 2^29.
    """
    wide = a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)
    return wide.astype(np.float32)


def linear_quantized(x: QuantizedRows, weight: QuantizedMatrix) -> Float32:
    """[*, K] by [N, K] -> [*, N].

    Groups ascending; inside a group of g inputs `dot = sum (code_w - offset) * code_x` in integers, then
    `acc = fma(float(dot) * scale_w, scale_x, acc)`; with mins `acc = fma(min_w, scale_x * sum_x, acc)`
    where `sum_x` is the sum of the group's activation codes.
    """
    size = weight.format.group_size
    num_rows, num_inputs = x.codes.shape
    accumulator = np.zeros((num_rows, weight.codes.shape[0]), np.float32)
    for group in range(-(-num_inputs // size)):
        columns = slice(group * size, (group + 1) * size)
        codes_x = x.codes[:, columns].astype(np.float64)
        codes_w = weight.codes[:, columns].astype(np.float64) - weight.offset
        dot = (codes_x @ codes_w.T).astype(np.float32)  # integers below 2^24: exact in any order
        scale_x = x.scales[:, group * size // Q8_GROUP, None]
        scale_w = weight.scales[None, :, group]
        accumulator = fused_multiply_add(dot * scale_w, scale_x, accumulator)
        if weight.mins is not None:
            total = scale_x * codes_x.sum(axis=1, keepdims=True).astype(np.float32)
            accumulator = fused_multiply_add(weight.mins[None, :, group], total, accumulator)
    return accumulator


def linear_float(x: Float32, weight: Float32) -> Float32:
    """[*, K] by [N, K] -> [*, N]: the exact sum, rounded once.

    Back ends keep one float32 chain per output with inputs ascending; their error is bounded by
    K * 2^-24 * sum |x * w|.
    """
    return (x.astype(np.float64) @ weight.astype(np.float64).T).astype(np.float32)


def dequantize(weight: QuantizedMatrix) -> Float32:
    """[N, K]: scales * (codes - offset) + mins, as float32."""
    size, num_inputs = weight.format.group_size, weight.codes.shape[1]
    values = weight.codes.astype(np.float32) - np.float32(weight.offset)
    values *= np.repeat(weight.scales, size, axis=1)[:, :num_inputs]
    if weight.mins is not None:
        values += np.repeat(weight.mins, size, axis=1)[:, :num_inputs]
    return values
