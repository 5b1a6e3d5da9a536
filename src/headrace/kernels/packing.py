"""Packing a matrix into panels, and back. The layout is drawn in `panels.py`."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import KernelError
from headrace.kernels import panels
from headrace.kernels.formats import Matrix, PackedWeight, QuantizedMatrix, WeightFormat
from headrace.kernels.panels import GROUP, HEADER_BYTES, PANEL, Bytes, Header, PanelLayout

#: Part of the key of packed weights on disk; changes with any change of the layout in `panels.py`.
LAYOUT_VERSION = 2

_CODES = {weight_format: code for code, weight_format in enumerate(WeightFormat)}
_GROUP_BYTES = {
    WeightFormat.W4G32: 256,
    WeightFormat.W8G32: 512,
    WeightFormat.W8G16: 512,
    WeightFormat.BF16: 1024,
    WeightFormat.F16: 1024,
    WeightFormat.F32: 2048,
}
_FLOAT_FORMATS = {
    np.dtype(np.uint16): WeightFormat.BF16,
    np.dtype(np.float16): WeightFormat.F16,
    np.dtype(np.float32): WeightFormat.F32,
}
#: Panels that are converted at once, so that temporaries stay small.
_PANELS_AT_ONCE = 512


def packed_size(
    weight_format: WeightFormat, num_outputs: int, num_inputs: int, *, has_mins: bool
) -> int:
    """Bytes of `PackedWeight.data`."""
    layout = _layout(weight_format, num_inputs, has_mins)
    return HEADER_BYTES + -(-num_outputs // PANEL) * layout.bytes


def pack(matrix: Matrix) -> PackedWeight:
    """The matrix in panels; codes and floats exact, scales and mins rounded to 11 bits.

    Shards slice outputs before. Raises KernelError for shapes, codes or scales that make no sense.
    """
    if isinstance(matrix, QuantizedMatrix):
        return _pack_quantized(matrix)
    weight_format = _FLOAT_FORMATS.get(matrix.dtype)
    if weight_format is None or matrix.ndim != 2 or 0 in matrix.shape:
        raise KernelError(f"pack: {matrix.dtype} {matrix.shape} is no float matrix [N, K].")
    packed, layout = _allocate(weight_format, matrix.shape, has_mins=False)
    for rows, target in _parts(packed, layout):
        padded = panels.pad_rows(matrix[rows], len(target), layout.num_groups * GROUP)
        is_paired = weight_format is WeightFormat.BF16
        panels.write_columns(padded.view(np.uint32) if is_paired else padded, target)
    return packed


def unpack_codes(weight: PackedWeight) -> QuantizedMatrix:
    """Codes, scales and mins as the kernels read them. Raises KernelError for float formats."""
    if not weight.format.is_quantized:
        raise KernelError(f"unpack_codes: {weight.format} has no codes.")
    layout, stored, exponent = _open(weight)
    num_groups = -(-weight.num_inputs // weight.format.group_size)

    def floats(part: slice) -> NDArray[np.float32]:
        rows = panels.read_columns(stored[:, :, part], np.float16)
        kept = rows[: weight.num_outputs, :num_groups].astype(np.float32)
        return kept * np.float32(2.0**-exponent)

    lines = stored[:, :, layout.code_part]
    if weight.format is WeightFormat.W4G32:
        codes = panels.read_nibbles(lines)
    else:
        codes = panels.read_columns(lines, np.uint32).view(np.uint8)
    return QuantizedMatrix(
        weight.format,
        np.ascontiguousarray(codes[: weight.num_outputs, : weight.num_inputs]),
        floats(layout.scale_part),
        floats(layout.min_part) if weight.has_mins else None,
        weight.offset,
    )


def unpack(weight: PackedWeight) -> NDArray[np.float32]:
    """The matrix [N, K] in float32: `scale * (code - offset) + min`, or the floats themselves."""
    if not weight.format.is_quantized:
        return _unpack_floats(weight)
    matrix = unpack_codes(weight)

    def spread(values: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.repeat(values, weight.format.group_size, axis=1)[:, : weight.num_inputs]

    values = (matrix.codes.astype(np.float32) - np.float32(matrix.offset)) * spread(matrix.scales)
    return values if matrix.mins is None else values + spread(matrix.mins)


def _unpack_floats(weight: PackedWeight) -> NDArray[np.float32]:
    _, stored, _ = _open(weight)
    if weight.format is WeightFormat.BF16:
        bits = panels.read_columns(stored, np.uint32).view(np.uint16).astype(np.uint32)
        rows = (bits << np.uint32(16)).view(np.float32)
    else:
        element = np.float16 if weight.format is WeightFormat.F16 else np.float32
        rows = panels.read_columns(stored, element).astype(np.float32)
    return np.ascontiguousarray(rows[: weight.num_outputs, : weight.num_inputs])


def _pack_quantized(matrix: QuantizedMatrix) -> PackedWeight:
    _check_quantized(matrix)
    exponent = _exponent(matrix)
    packed, layout = _allocate(
        matrix.format,
        matrix.codes.shape,
        has_mins=matrix.mins is not None,
        offset=matrix.offset,
        exponent=exponent,
    )
    width = layout.num_groups * (GROUP // matrix.format.group_size)
    unit = np.float32(2.0**exponent)

    def write(values: NDArray[np.float32], target: Bytes) -> None:
        stored = (values * unit).astype(np.float16)
        panels.write_columns(panels.pad_rows(stored, len(target), width), target)

    for rows, target in _parts(packed, layout):
        codes = panels.pad_rows(matrix.codes[rows], len(target), layout.num_groups * GROUP)
        lines = target[:, :, layout.code_part]
        if matrix.format is WeightFormat.W4G32:
            panels.write_nibbles(codes, lines)
        else:
            panels.write_columns(codes.view(np.uint32), lines)
        write(matrix.scales[rows], target[:, :, layout.scale_part])
        if matrix.mins is not None:
            write(matrix.mins[rows], target[:, :, layout.min_part])
    return packed


def _check_quantized(matrix: QuantizedMatrix) -> None:
    codes, scales, mins = matrix.codes, matrix.scales, matrix.mins
    if not matrix.format.is_quantized or codes.ndim != 2 or 0 in codes.shape:
        raise KernelError(f"pack: {matrix.format} codes {codes.shape} are no matrix [N, K].")
    groups = (codes.shape[0], -(-codes.shape[1] // matrix.format.group_size))
    if codes.dtype != np.uint8 or scales.shape != groups:
        raise KernelError(f"pack: scales {scales.shape} where {groups} are needed.")
    if mins is not None and mins.shape != groups:
        raise KernelError(f"pack: mins {mins.shape} where {groups} are needed.")
    if not 0 <= matrix.offset <= 128:
        raise KernelError(f"pack: an offset of {matrix.offset} is outside 0..128.")
    if mins is not None and matrix.offset:
        raise KernelError("pack: a matrix has minimums or an offset, not both.")
    if matrix.format is WeightFormat.W4G32 and codes.max() > 15:
        raise KernelError("pack: a 4-bit code exceeds 15.")
    if not np.isfinite(scales).all() or (mins is not None and not np.isfinite(mins).all()):
        raise KernelError("pack: a scale or a minimum is not finite.")


def _exponent(matrix: QuantizedMatrix) -> int:
    """The power of two that brings scales and mins into float16's range; 0 when they are in it."""
    parts = [matrix.scales] if matrix.mins is None else [matrix.scales, matrix.mins]
    largest = max(float(np.abs(part).max()) for part in parts)
    smallest = min(float(np.abs(part).min(initial=np.inf, where=part != 0)) for part in parts)
    if largest == 0.0 or (smallest >= 2.0**-14 and largest <= 65504.0):
        return 0
    return max(-126, min(126, 15 - int(np.frexp(largest)[1])))


def _layout(weight_format: WeightFormat, num_inputs: int, has_mins: bool) -> PanelLayout:
    is_quantized = weight_format.is_quantized
    return PanelLayout(
        num_inputs,
        group_bytes=_GROUP_BYTES[weight_format],
        scales_per_group=GROUP // weight_format.group_size if is_quantized else 0,
        has_mins=has_mins,
    )


def _allocate(
    weight_format: WeightFormat,
    shape: tuple[int, ...],
    *,
    has_mins: bool,
    offset: int = 0,
    exponent: int = 0,
) -> tuple[PackedWeight, PanelLayout]:
    """A weight of zeros with its header."""
    num_outputs, num_inputs = shape
    data = panels.empty_aligned(
        packed_size(weight_format, num_outputs, num_inputs, has_mins=has_mins)
    )
    header = Header(_CODES[weight_format], has_mins, offset, num_outputs, num_inputs, exponent)
    header.write(data)
    packed = PackedWeight(weight_format, num_outputs, num_inputs, has_mins, offset, data)
    return packed, _layout(weight_format, num_inputs, has_mins)


def _parts(packed: PackedWeight, layout: PanelLayout) -> Iterator[tuple[slice, Bytes]]:
    """Some rows at a time, with the panels [p, blocks, bytes] that they fill."""
    stored = packed.data[HEADER_BYTES:].reshape(-1, layout.num_blocks, layout.block_bytes)
    for first in range(0, len(stored), _PANELS_AT_ONCE):
        target = stored[first : first + _PANELS_AT_ONCE]
        yield slice(first * PANEL, (first + len(target)) * PANEL), target


def _open(weight: PackedWeight) -> tuple[PanelLayout, Bytes, int]:
    """(layout, panels [p, blocks, bytes], exponent). Raises KernelError for data of another weight."""
    size = packed_size(
        weight.format, weight.num_outputs, weight.num_inputs, has_mins=weight.has_mins
    )
    header = Header.read(weight.data)
    expected = Header(
        _CODES[weight.format],
        weight.has_mins,
        weight.offset,
        weight.num_outputs,
        weight.num_inputs,
        0 if header is None else header.exponent,
    )
    if header != expected or weight.data.shape != (size,):
        raise KernelError("unpack: the packed data is broken or belongs to another weight.")
    layout = _layout(weight.format, weight.num_inputs, weight.has_mins)
    return (
        layout,
        weight.data[HEADER_BYTES:].reshape(-1, layout.num_blocks, layout.block_bytes),
        header.exponent,
    )
