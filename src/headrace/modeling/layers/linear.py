"""A linear layer: one matrix, or several of different kernel formats side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.core.errors import ModelLoadError
from headrace.kernels.formats import Adapters
from headrace.kernels.ops import Backend
from headrace.kernels.values import Buffer, DType
from headrace.modeling.layers.recording import Recording
from headrace.modeling.weights.parameters import PackedPart

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class _Part:
    """Some of the output columns."""

    weight: Any
    bias: Any
    first_column: int
    operand: DType
    """What its input must be."""


class Linear:
    """out = x . W + b, and what adapters add to it."""

    def __init__(
        self,
        backend: Backend,
        parts: Sequence[PackedPart],
        bias: "NDArray[np.float32] | None" = None,
        adapters: Sequence[tuple[int, Adapters]] = (),
    ) -> None:
        """`adapters` are handles with the first column that each adds to."""
        self._adapters = tuple(adapters)
        self._parts = tuple(_load(backend, part, bias) for part in parts)
        operands = {part.operand for part in self._parts}
        #: What to give to `record`: the operand that all parts share, else f32.
        self.input_dtype = operands.pop() if len(operands) == 1 else DType.F32

    @property
    def table(self) -> Any:
        """The handle for `Recorder.embed`."""
        if len(self._parts) != 1:
            raise ModelLoadError("An embedding table must be one matrix.")
        return self._parts[0].weight

    def record(
        self,
        recording: Recording,
        x: Buffer,
        out: Buffer,
        *,
        first_column: int = 0,
        accumulate: bool = False,
        scale: float = 1.0,
    ) -> None:
        """Write, or add, to the columns of `out` that start at `first_column`."""
        for part in self._parts:
            recording.recorder.linear(
                _as_operand(recording, x, part.operand),
                part.weight,
                out,
                bias=part.bias,
                accumulate=accumulate,
                first_column=first_column + part.first_column,
                scale=scale,
            )
        for column, handle in self._adapters:
            recording.recorder.adapt(
                x, handle, out, first_column=first_column + column, scale=scale
            )


def _load(backend: Backend, part: PackedPart, bias: "NDArray[np.float32] | None") -> _Part:
    first, size = part.first_column, part.weight.num_outputs
    return _Part(
        weight=backend.load_weight(part.weight),
        bias=None if bias is None else backend.load_vector(bias[first : first + size]),
        first_column=first,
        operand=backend.operand_dtype(part.weight.format),
    )


def _as_operand(recording: Recording, x: Buffer, dtype: DType) -> Buffer:
    if x.dtype is dtype:
        return x
    converted = recording.scratch("operand", x.rows, x.width, dtype)
    recording.recorder.convert(x, converted)
    return converted
