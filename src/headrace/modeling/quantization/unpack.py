"""From the bytes of a checkpoint tensor to a `Matrix`: one unpacker a file type.

Codes are taken over exactly; scales are the file's own product in float32. Shapes: N outputs, K inputs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ModelLoadError, UnsupportedModelError
from headrace.kernels.formats import Matrix, QuantizedMatrix, WeightFormat
from headrace.modeling.quantization import k_quants, legacy_blocks

#: Blocks are unpacked in slices of this many codes, so that temporaries stay in cache.
SLICE_CODES: Final = 1 << 19


@dataclass(frozen=True, slots=True)
class Unpacker:
    """How the blocks of one file type become codes, scales and mins."""

    format: WeightFormat
    block_size: int  # inputs per block
    block_bytes: int
    offset: int  # 0 when the type has mins
    fill: Callable[
        [NDArray[np.uint8], NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32] | None],
        None,
    ]

    @property
    def has_mins(self) -> bool:
        return self.offset == 0


UNPACKERS: Final[dict[str, Unpacker]] = {
    "Q8_0": Unpacker(WeightFormat.W8G32, 32, 34, 128, legacy_blocks.q8_0),
    "Q4_0": Unpacker(WeightFormat.W4G32, 32, 18, 8, legacy_blocks.q4_0),
    "Q4_1": Unpacker(WeightFormat.W4G32, 32, 20, 0, legacy_blocks.q4_1),
    "Q5_0": Unpacker(WeightFormat.W8G32, 32, 22, 16, legacy_blocks.q5_0),
    "Q5_1": Unpacker(WeightFormat.W8G32, 32, 24, 0, legacy_blocks.q5_1),
    "Q4_K": Unpacker(WeightFormat.W4G32, 256, 144, 0, k_quants.q4_k),
    "Q5_K": Unpacker(WeightFormat.W8G32, 256, 176, 0, k_quants.q5_k),
    "Q6_K": Unpacker(WeightFormat.W8G16, 256, 210, 32, k_quants.q6_k),
}
FLOATS: Final[dict[str, np.dtype[Any]]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


def unpack(
    type_name: str, raw: memoryview, num_inputs: int, rows: tuple[int, int], *, name: str = "tensor"
) -> Matrix:
    """Output rows [start, stop) of a tensor whose bytes are `raw`, as [stop - start, K].

    A float matrix is a view of `raw`. Raises UnsupportedModelError for a type that has no unpacker and
    ModelLoadError when `raw` does not hold the rows.
    """
    if type_name in FLOATS:
        dtype = FLOATS[type_name]
        row_bytes = num_inputs * dtype.itemsize
        flat: NDArray[Any] = np.frombuffer(_rows(raw, row_bytes, rows, name), dtype)
        matrix: Matrix = flat.reshape(rows[1] - rows[0], num_inputs)
        return matrix
    unpacker = UNPACKERS.get(type_name)
    if unpacker is None:
        supported = ", ".join([*FLOATS, *UNPACKERS])
        raise UnsupportedModelError(
            f"{name} has the type {type_name}, which is not supported; supported are {supported}."
        )
    if num_inputs % unpacker.block_size:
        raise ModelLoadError(f"{name} has rows of {num_inputs}, which {type_name} cannot hold.")
    row_bytes = num_inputs // unpacker.block_size * unpacker.block_bytes
    data = np.frombuffer(_rows(raw, row_bytes, rows, name), np.uint8)
    return _unpack_blocks(unpacker, data.reshape(-1, unpacker.block_bytes), num_inputs)


def _rows(raw: memoryview, row_bytes: int, rows: tuple[int, int], name: str) -> memoryview:
    start, stop = rows
    if not 0 <= start <= stop or stop * row_bytes > raw.nbytes:
        raise ModelLoadError(f"{name} does not hold the rows {start} to {stop}.")
    return raw[start * row_bytes : stop * row_bytes]


def _unpack_blocks(
    unpacker: Unpacker, blocks: NDArray[np.uint8], num_inputs: int
) -> QuantizedMatrix:
    num_blocks, size = len(blocks), unpacker.block_size
    num_groups = size // unpacker.format.group_size
    codes = np.empty((num_blocks, size), np.uint8)
    scales = np.empty((num_blocks, num_groups), np.float32)
    mins = np.empty((num_blocks, num_groups), np.float32) if unpacker.has_mins else None
    step = SLICE_CODES // size
    for start in range(0, num_blocks, step):
        part = slice(start, start + step)
        unpacker.fill(blocks[part], codes[part], scales[part], None if mins is None else mins[part])
    groups = num_inputs // unpacker.format.group_size
    return QuantizedMatrix(
        unpacker.format,
        codes.reshape(-1, num_inputs),
        scales.reshape(-1, groups),
        None if mins is None else mins.reshape(-1, groups),
        unpacker.offset,
    )
