"""What the methods of a recorder check of their arguments; each failure is a KernelError that names the op."""

from abc import ABC, abstractmethod
from typing import Any

from headrace.core.errors import KernelError
from headrace.kernels.values import Buffer, DType


class ShapeChecks(ABC):
    """Checks of shapes and dtypes, shared by all ops."""

    @abstractmethod
    def vector_size(self, vector: Any) -> int:
        """Length of a handle from `Backend.load_vector`."""

    def _require(self, condition: bool, op: str, sentence: str) -> None:
        if not condition:
            raise KernelError(f"{op}: {sentence}.")

    def _float(self, op: str, *buffers: Buffer) -> None:
        for buffer in buffers:
            self._require(
                buffer.dtype is DType.F32, op, f"{buffer.dtype} given where f32 is needed"
            )

    def _same_shape(self, op: str, x: Buffer, out: Buffer) -> None:
        self._require(
            x.rows is out.rows and x.width == out.width,
            op,
            f"x is [{x.rows}, {x.width}] but out [{out.rows}, {out.width}]",
        )

    def _length(self, op: str, vector: Any, size: int) -> None:
        found = self.vector_size(vector)
        self._require(found == size, op, f"a vector of {size} is needed, {found} given")
