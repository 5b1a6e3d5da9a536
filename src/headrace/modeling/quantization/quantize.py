"""From float weights to codes, for `--quantize int8` and `--quantize int4`. N outputs, K inputs.

Scales and minima are rounded to float16, which is how kernels store them, before the codes are chosen,
so that the codes make up for that rounding.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ConfigError
from headrace.kernels.formats import Matrix, QuantizedMatrix, WeightFormat
from headrace.modeling.quantization.dequantize import dequantize

GROUP: Final = 32
INT8_OFFSET: Final = 128
INT8_LEVELS: Final = 127
INT4_LEVELS: Final = 15
#: Widths of the first grid of a 4-bit group, relative to its range. A narrower grid clips the group's
#: extremes and is finer in between; the least-squares fit that follows moves it where it is best.
INT4_WIDTHS: Final = (1.0, 0.94, 0.88, 0.8)
#: Groups that are worked on at once (temporaries of 256 KiB, which stay in cache).
SLICE_GROUPS: Final = 2048

Floats = NDArray[np.float32]


def is_quantizable(num_inputs: int) -> bool:
    """Rows must be whole groups; others stay float."""
    return num_inputs > 0 and num_inputs % GROUP == 0


def quantize(matrix: Matrix, option: str, *, min_bits: int = 4) -> Matrix:
    """Quantise a float matrix [N, K] by option "int8" or "int4"; anything quantised stays as it is.

    `min_bits=8` keeps sensitive matrices, such as embeddings, at 8 bits under int4.
    """
    if option not in ("int8", "int4"):
        raise ConfigError(f"quantize must be int8 or int4, not '{option}'.")
    if isinstance(matrix, QuantizedMatrix) or not is_quantizable(matrix.shape[1]):
        return matrix
    # Weights that are not finite give scales that are not finite, which loading refuses by name.
    with np.errstate(invalid="ignore", over="ignore"):
        return _to_int4(matrix) if option == "int4" and min_bits <= 4 else _to_int8(matrix)


def _to_int8(matrix: Matrix) -> QuantizedMatrix:
    """w8g32: scale = max|w| / 127, code = rint(w / scale) + 128."""
    codes, scales = _allocate(matrix)
    for part, groups in _slices(matrix):
        scale = _round_half(np.abs(groups).max(axis=1, keepdims=True) / np.float32(INT8_LEVELS))
        levels = np.rint(groups * _inverse(scale))
        np.clip(levels, -INT8_LEVELS, INT8_LEVELS, out=levels)
        codes[part] = levels + np.float32(INT8_OFFSET)
        scales[part] = scale
    return _finish(matrix, WeightFormat.W8G32, codes, scales, None, INT8_OFFSET)


def _to_int4(matrix: Matrix) -> QuantizedMatrix:
    """w4g32 with minima: w = scale * code + min, code in 0..15, for the least squared error.

    Each candidate grid assigns codes; the best scale and minimum for those codes follow by linear
    regression, and the candidate with the smallest residual wins. (The idea of the search is that of
    ggml's `make_qkx2_quants`; every group is fitted at once here.)
    """
    codes, scales = _allocate(matrix)
    mins = np.empty_like(scales)
    for part, groups in _slices(matrix):
        scale, minimum = _search_grid(groups)
        scale, minimum = _round_half(scale), _round_half(minimum)
        levels = np.rint((groups - minimum) * _inverse(scale))
        codes[part] = np.clip(levels, 0, INT4_LEVELS, out=levels)
        scales[part], mins[part] = scale, minimum
    return _finish(matrix, WeightFormat.W4G32, codes, scales, mins, 0)


def _search_grid(groups: Floats) -> tuple[Floats, Floats]:
    """The best (scale, minimum), each [n, 1], for groups [n, 32]."""
    low, high = groups.min(axis=1, keepdims=True), groups.max(axis=1, keepdims=True)
    mean = groups.mean(axis=1, keepdims=True)
    centred = groups - mean
    best_scale = (high - low) / np.float32(INT4_LEVELS)
    best_min = low.copy()
    gain = np.zeros_like(best_scale)  # how much of the variance the regression explains
    middle, width = (low + high) / 2, high - low
    for relative in INT4_WIDTHS:
        scale = width * np.float32(relative / INT4_LEVELS)
        start = middle - width * np.float32(relative / 2)
        levels = np.rint((groups - start) * _inverse(scale))
        np.clip(levels, 0, INT4_LEVELS, out=levels)
        mean_level = levels.mean(axis=1, keepdims=True)
        levels -= mean_level
        covariance = np.einsum("ij,ij->i", levels, centred)[:, None]
        inverse_variance = _inverse(np.einsum("ij,ij->i", levels, levels)[:, None])
        slope = covariance * inverse_variance
        explained = covariance * slope
        is_better = explained > gain
        gain = np.where(is_better, explained, gain)
        best_scale = np.where(is_better, slope, best_scale)
        best_min = np.where(is_better, mean - slope * mean_level, best_min)
    return best_scale, best_min


def _allocate(matrix: Matrix) -> tuple[NDArray[np.uint8], Floats]:
    assert not isinstance(matrix, QuantizedMatrix)
    num_groups = matrix.size // GROUP
    return np.empty((num_groups, GROUP), np.uint8), np.empty((num_groups, 1), np.float32)


def _slices(matrix: Matrix) -> Iterator[tuple[slice, Floats]]:
    """Groups [n, 32] in float32, a slice of the matrix at a time."""
    assert not isinstance(matrix, QuantizedMatrix)
    groups = matrix.reshape(-1, GROUP)
    for start in range(0, len(groups), SLICE_GROUPS):
        part = slice(start, min(start + SLICE_GROUPS, len(groups)))
        yield part, dequantize(groups[part])


def _round_half(values: Floats) -> Floats:
    """To float16 and back; a number too large becomes infinite."""
    return values.astype(np.float16).astype(np.float32)


def _inverse(values: Floats) -> Floats:
    """1 / values, with 0 for 0: a group of equal weights has one level."""
    return np.divide(np.float32(1), values, out=np.zeros_like(values), where=values != 0)


def _finish(
    matrix: Matrix,
    weight_format: WeightFormat,
    codes: NDArray[np.uint8],
    scales: Floats,
    mins: Floats | None,
    offset: int,
) -> QuantizedMatrix:
    assert not isinstance(matrix, QuantizedMatrix)
    num_outputs, num_inputs = matrix.shape
    groups = (num_outputs, num_inputs // GROUP)
    return QuantizedMatrix(
        weight_format,
        codes.reshape(num_outputs, num_inputs),
        scales.reshape(groups),
        None if mins is None else mins.reshape(groups),
        offset,
    )
