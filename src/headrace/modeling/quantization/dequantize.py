"""From any `Matrix` back to float32: for vectors, and as the tests' measure."""

import numpy as np
from numpy.typing import NDArray

from headrace.kernels.formats import Matrix, QuantizedMatrix


def dequantize(matrix: Matrix) -> NDArray[np.float32]:
    """The weights in float32, [N, K]; uint16 arrays are taken as bf16 bits."""
    if not isinstance(matrix, QuantizedMatrix):
        if matrix.dtype == np.uint16:
            return (matrix.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return matrix.astype(np.float32)
    num_outputs, num_inputs = matrix.codes.shape
    groups = (num_outputs, num_inputs // matrix.format.group_size, matrix.format.group_size)
    weights = matrix.codes.reshape(groups).astype(np.float32)
    weights -= np.float32(matrix.offset)
    weights *= matrix.scales[..., None]
    if matrix.mins is not None:
        weights += matrix.mins[..., None]
    return weights.reshape(num_outputs, num_inputs)
