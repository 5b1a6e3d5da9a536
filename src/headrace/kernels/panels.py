"""The panel layout that every instruction set streams: where things lie, and moving arrays in and out.

    header   64 bytes: magic, format, has_mins, offset, N, K, exponent (struct below), zeros
    panel 0  outputs 0..15
    panel 1  outputs 16..31
    ...      N is padded to 16 outputs and K to 32 inputs with zero codes, scales and weights

One panel, with B = ceil(K / 32) groups; every part starts at a multiple of 64 bytes:

    codes    group 0 | group 1 | ... | group B-1
    scales   float16 [B, 16 outputs]; two rows a group for w8g16: [2B, 16]
    mins     the same shape, only with `has_mins`

A *quad* is four adjacent inputs of sixteen outputs, 64 bytes: byte 4n + j is input 4q + j of output n.
That is one vector operand of an int8 dot product, whose other operand is four codes of a row, repeated.

    w8       group = quads 0..7                                                        512 bytes
    w4       group = four lines; line i: low nibbles quad 2i, high nibbles quad 2i + 1     256 bytes
             line 0                         line 1              line 2              line 3
             [hi: q1 | lo: q0] x 64 bytes   [hi: q3 | lo: q2]   [hi: q5 | lo: q4]   [hi: q7 | lo: q6]

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
_MAGIC = 0x31575248

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
    """Offsets inside one panel.

    `group_bytes` codes or floats per 32 inputs; `scales_per_group` is 0 for float formats.
    """

    def __init__(
        self, num_inputs: int, *, group_bytes: int, scales_per_group: int, has_mins: bool
    ) -> None:
        self.groups = -(-num_inputs // GROUP)  # B
        self.scales = self.groups * group_bytes
        self._scale_bytes = 2 * PANEL * self.groups * scales_per_group
        self.mins = self.scales + -(-self._scale_bytes // ALIGNMENT) * ALIGNMENT
        self.bytes = self.mins + (self.mins - self.scales if has_mins else 0)

    @property
    def code_part(self) -> slice:
        return slice(0, self.scales)

    @property
    def scale_part(self) -> slice:
        return slice(self.scales, self.scales + self._scale_bytes)

    @property
    def min_part(self) -> slice:
        return slice(self.mins, self.mins + self._scale_bytes)


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
    """Rows [panels * 16, W] into `target` [panels, bytes] as [panels, W, 16]."""
    panels = len(target)
    stored = target.view(rows.dtype).reshape(panels, -1, PANEL)
    stored[:] = rows.reshape(panels, PANEL, -1).transpose(0, 2, 1)


def read_columns(source: Bytes, element: type[np.generic]) -> NDArray[Any]:
    """The inverse of `write_columns`."""
    stored = np.ascontiguousarray(source).view(element).reshape(len(source), -1, PANEL)
    rows = np.ascontiguousarray(stored.transpose(0, 2, 1))
    return rows.reshape(len(source) * PANEL, -1)


def write_nibbles(codes: Bytes, target: Bytes) -> None:
    """4-bit codes [panels * 16, 32 B] into their lines."""
    panels = len(target)
    quads = codes.view(np.uint32).reshape(panels, PANEL, -1).transpose(0, 2, 1)
    lines = quads[:, 1::2] << np.uint32(4)
    lines |= quads[:, 0::2]
    target.view(np.uint32).reshape(lines.shape)[:] = lines


def read_nibbles(source: Bytes) -> Bytes:
    """The inverse of `write_nibbles`."""
    panels = len(source)
    lines = np.ascontiguousarray(source).view(np.uint32).reshape(panels, -1, PANEL)
    mask = np.uint32(0x0F0F0F0F)
    both = np.stack((lines & mask, lines >> np.uint32(4) & mask), axis=2)
    quads = both.reshape(panels, -1, PANEL).transpose(0, 2, 1)
    return np.ascontiguousarray(quads).view(np.uint8).reshape(panels * PANEL, -1)
