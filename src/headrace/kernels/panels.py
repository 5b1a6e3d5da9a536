"""The panel layout that every instruction set streams: where things lie, and moving arrays in and out.

    header   64 bytes: magic, format, has_mins, offset, N, K, exponent (struct below), zeros
    panel 0  outputs 0..15
    panel 1  outputs 16..31
    ...      N is padded to 16 outputs and K to 32 inputs with zero codes, scales and weights

A panel is one stream of memory: blocks of one or two groups of 32 inputs, scales in front of codes.

    block    scales (and mins) of its groups, then the codes of its groups; a multiple of 64 bytes
             two groups where scales take 32 bytes a group, so that they fill a line; else one
    scales   float16 [16 outputs] per group, two such rows a group for w8g16
    mins     the same, behind the group's scales, only with `has_mins`

    w4g32    [scales g0 | scales g1]  [codes g0]  [codes g1]     64 + 2 x 256 bytes
    w4g32 with mins   [scales | mins] [codes]                    64 + 256
    w8g32    [scales g0 | scales g1]  [codes g0]  [codes g1]     64 + 2 x 512
    w8g32 with mins   [scales | mins] [codes]                    64 + 512
    w8g16    [scales, 2 rows] [codes]                            64 + 512
    w8g16 with mins   [scales, 2 rows] [mins, 2 rows] [codes]    128 + 512

A *quad* is four adjacent inputs of sixteen outputs, 64 bytes: byte 4n + j is input 4q + j of output n.
That is one vector operand of an int8 dot product, whose other operand is four codes of a row, repeated.

    w8 codes of a group: quads 0..7
    w4 codes of a group: four lines; line i holds quad 2i in the low and quad 2i + 1 in the high nibbles

Float panels have no scales. f32: per input, 16 outputs (64 bytes). f16: the same in 32 bytes. bf16: per pair
of inputs, 16 words with the even input in the low half (64 bytes), the operand of a bf16 dot product.

Scales and mins are stored times 2^exponent, where the exponent is 0 unless float16 would lose precision
(values under 2^-14 or over 65504); the kernels take the power of two out again, which is exact.
"""

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

PANEL = 16
GROUP = 32
HEADER_BYTES = 64
ALIGNMENT = 64

_HEADER = struct.Struct("<IBBHqqi")
_MAGIC = 0x32575248

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Header:
    """What the first bytes of a packed weight say, so that a foreign or broken file is noticed."""

    code: int
    """Number of the format."""
    has_mins: bool
    offset: int
    num_outputs: int
    num_inputs: int
    exponent: int

    def write(self, data: Bytes) -> None:
        fields = _HEADER.pack(
            _MAGIC,
            self.code,
            self.has_mins,
            self.offset,
            self.num_outputs,
            self.num_inputs,
            self.exponent,
        )
        data[: len(fields)] = np.frombuffer(fields, dtype=np.uint8)

    @staticmethod
    def read(data: Bytes) -> "Header | None":
        """None when the bytes are no header."""
        if len(data) < HEADER_BYTES:
            return None
        magic, code, has_mins, *rest = _HEADER.unpack(data[: _HEADER.size].tobytes())
        return Header(code, bool(has_mins), *rest) if magic == _MAGIC else None


class PanelLayout:
    """Sizes inside one panel.

    `group_bytes` codes or floats per 32 inputs; `scales_per_group` is 0 for float formats.
    """

    def __init__(
        self, num_inputs: int, *, group_bytes: int, scales_per_group: int, has_mins: bool
    ) -> None:
        row_bytes = 2 * PANEL * scales_per_group
        group_scales = row_bytes * (2 if has_mins else 1)
        groups = -(-num_inputs // GROUP)
        self.groups_per_block = 2 if group_scales == ALIGNMENT // 2 else 1
        self.num_blocks = -(-groups // self.groups_per_block)
        self._codes = group_scales * self.groups_per_block
        self._scales = row_bytes * self.groups_per_block
        self.block_bytes = self._codes + group_bytes * self.groups_per_block
        self.bytes = self.num_blocks * self.block_bytes

    @property
    def num_groups(self) -> int:
        """Groups of 32 inputs that fit, padding included."""
        return self.num_blocks * self.groups_per_block

    @property
    def code_part(self) -> slice:
        """Bytes of a block that hold codes."""
        return slice(self._codes, self.block_bytes)

    @property
    def scale_part(self) -> slice:
        return slice(0, self._scales)

    @property
    def min_part(self) -> slice:
        return slice(self._scales, self._codes)


def empty_aligned(size: int) -> Bytes:
    """`size` zeroed bytes that start at a multiple of 64."""
    raw = np.zeros(size + ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


def pad_rows(rows: NDArray[Any], panels: int, width: int) -> NDArray[Any]:
    """Rows of whole panels, `width` wide, the rest zeros."""
    shape = (panels * PANEL, width)
    if rows.shape == shape:
        return np.ascontiguousarray(rows)
    padded = np.zeros(shape, dtype=rows.dtype)
    padded[: rows.shape[0], : rows.shape[1]] = rows
    return padded


def write_columns(rows: NDArray[Any], target: Bytes) -> None:
    """Rows [panels * 16, W] into `target` [panels, blocks, bytes], sixteen outputs side by side."""
    panels, blocks, _ = target.shape
    stored = target.view(rows.dtype).reshape(panels, blocks, -1, PANEL)
    stored[:] = rows.reshape(panels, PANEL, blocks, -1).transpose(0, 2, 3, 1)


def read_columns(source: Bytes, element: type[np.generic]) -> NDArray[Any]:
    """The inverse of `write_columns`."""
    panels, blocks, _ = source.shape
    stored = source.view(element).reshape(panels, blocks, -1, PANEL)
    return np.ascontiguousarray(stored.transpose(0, 3, 1, 2)).reshape(panels * PANEL, -1)


def write_nibbles(codes: Bytes, target: Bytes) -> None:
    """4-bit codes [panels * 16, K] into the lines of `target` [panels, blocks, bytes]."""
    panels, blocks, _ = target.shape
    quads = codes.view(np.uint32).reshape(panels, PANEL, blocks, -1).transpose(0, 2, 3, 1)
    lines = quads[:, :, 1::2] << np.uint32(4)
    lines |= quads[:, :, 0::2]
    target.view(np.uint32).reshape(lines.shape)[:] = lines


def read_nibbles(source: Bytes) -> Bytes:
    """The inverse of `write_nibbles`."""
    panels, blocks, _ = source.shape
    lines = source.view(np.uint32).reshape(panels, blocks, -1, PANEL)
    mask = np.uint32(0x0F0F0F0F)
    both = np.stack((lines & mask, lines >> np.uint32(4) & mask), axis=3)
    quads = both.reshape(panels, blocks, -1, PANEL).transpose(0, 3, 1, 2)
    return np.ascontiguousarray(quads).view(np.uint8).reshape(panels * PANEL, -1)
