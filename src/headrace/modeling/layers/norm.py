"""RMSNorm and LayerNorm."""

from dataclasses import dataclass
from typing import Any

from headrace.kernels.values import Buffer, DType
from headrace.modeling.layers.recording import Recording


@dataclass(frozen=True, slots=True)
class Norm:
    """A weight handle and its epsilon."""

    weight: Any
    eps: float

    def record(self, recording: Recording, x: Buffer, dtype: DType) -> Buffer:
        """The normalised rows, already in the dtype that their reader takes."""
        out = recording.scratch("normed", x.rows, x.width, dtype)
        recording.recorder.rms_norm(x, self.weight, out, eps=self.eps)
        return out

    def record_add(self, recording: Recording, x: Buffer, residual: Buffer) -> None:
        """`residual += norm(x)`."""
        recording.recorder.rms_norm_add(x, self.weight, residual, eps=self.eps)


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Handles of weight and bias, and an epsilon."""

    weight: Any
    bias: Any
    eps: float

    def record_in_place(self, recording: Recording, x: Buffer) -> None:
        """`x = norm(x)`; x f32."""
        recording.recorder.layer_norm(x, self.weight, self.bias, x, eps=self.eps)
