"""Weights as the reference back end keeps them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import KernelError
from headrace.kernels.formats import Matrix, PackedWeight, QuantizedMatrix, WeightFormat
from headrace.kernels.packing import unpack, unpack_codes
from headrace.kernels.reference.linear import dequantize
from headrace.kernels.reference.rounding import from_bf16_bits


@dataclass(frozen=True, slots=True)
class ReferenceWeight:
    """Codes for the exact integer product, or float32 values. `format` is that of the source."""

    format: WeightFormat
    num_outputs: int  # N
    num_inputs: int  # K
    matrix: QuantizedMatrix | NDArray[np.float32]

    def rows(self, ids: NDArray[np.int32]) -> NDArray[np.float32]:
        """Rows of the matrix as float32 [len(ids), K], for `embed`."""
        if not isinstance(self.matrix, QuantizedMatrix):
            return self.matrix[ids]
        whole = self.matrix
        mins = None if whole.mins is None else whole.mins[ids]
        part = QuantizedMatrix(
            whole.format, whole.codes[ids], whole.scales[ids], mins, whole.offset
        )
        return dequantize(part)


def load_matrix(source: PackedWeight | Matrix, *, keep_codes: bool) -> ReferenceWeight:
    """Unpack a weight; quantised ones stay codes with `keep_codes`, else become float32."""
    if isinstance(source, PackedWeight):
        return _load_packed(source, keep_codes=keep_codes)
    matrix = source
    if isinstance(matrix, QuantizedMatrix):
        num_outputs, num_inputs = matrix.codes.shape
        kept = matrix if keep_codes else dequantize(matrix)
        return ReferenceWeight(matrix.format, num_outputs, num_inputs, kept)
    num_outputs, num_inputs = matrix.shape
    if matrix.dtype == np.uint16:
        return ReferenceWeight(
            WeightFormat.BF16, num_outputs, num_inputs, from_bf16_bits(matrix.astype(np.uint16))
        )
    if matrix.dtype == np.float16:
        values = matrix.astype(np.float32)
        return ReferenceWeight(WeightFormat.F16, num_outputs, num_inputs, values)
    if matrix.dtype != np.float32:
        raise KernelError(f"load_weight: a matrix of {matrix.dtype} is not a kernel format.")
    return ReferenceWeight(
        WeightFormat.F32, num_outputs, num_inputs, np.ascontiguousarray(matrix, dtype=np.float32)
    )


def _load_packed(weight: PackedWeight, *, keep_codes: bool) -> ReferenceWeight:
    is_kept = keep_codes and weight.format.is_quantized
    matrix = unpack_codes(weight) if is_kept else unpack(weight)
    return ReferenceWeight(weight.format, weight.num_outputs, weight.num_inputs, matrix)
