"""How many bytes a program's buffers take, known before any is made: `row_stride` and `add_buffer` of csrc/program/program.cc."""

from collections.abc import Sequence

from headrace.kernels.values import Buffer, DType, Rows, StepLimits

#: As `kSlackRows`, `kAlignment` and `sizeof(Q8Group)` in csrc.
_SLACK_ROWS, _LINE, _Q8_GROUP = 16, 64, 48
_GROUP = 32


def arena_bytes(buffers: Sequence[Buffer], limits: StepLimits) -> int:
    """Of a program with these buffers and limits."""
    rows = {Rows.TOKENS: limits.max_tokens, Rows.OUTPUTS: limits.max_outputs}
    return sum((rows[b.rows] + _SLACK_ROWS) * _stride(b.width, b.dtype) for b in buffers)


def _stride(width: int, dtype: DType) -> int:
    """Bytes from row to row: whole lines, and never a multiple of 1 KiB."""
    if dtype is DType.Q8:
        row = -(-width // _GROUP) * _Q8_GROUP
    else:
        row = width * (4 if dtype is DType.F32 else 2)
    stride = -(-row // _LINE) * _LINE
    return stride if stride % 1024 else stride + _LINE
