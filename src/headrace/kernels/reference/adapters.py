"""Specification of adapters: what each adds to a row of a linear."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import KernelError
from headrace.kernels.formats import LowRank
from headrace.kernels.reference.linear import linear_float

Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ReferenceAdapters:
    """The adapters of one linear; index 0 is the base model."""

    entries: tuple[LowRank | None, ...]
    num_outputs: int  # N
    num_inputs: int  # K

    def added(self, index: int, x: Float32) -> Float32 | None:
        """What an adapter adds to one row [K]; None where that is nothing. Raises KernelError."""
        if index > len(self.entries):
            raise KernelError(f"adapt: there is no adapter {index}.")
        entry = self.entries[index - 1] if index else None
        if entry is None:
            return None
        added: Float32 = linear_float(linear_float(x[None, :], entry.down), entry.up)[0]
        return added


def load_adapters(adapters: Sequence[LowRank | None]) -> ReferenceAdapters:
    """The handle. Raises KernelError where shapes do not fit together."""
    shapes = {(len(entry.up), entry.down.shape[1]) for entry in adapters if entry is not None}
    if len(shapes) != 1:
        raise KernelError(f"load_adapters: one shape of linear is needed, {len(shapes)} given.")
    for entry in adapters:
        if entry is not None and entry.up.shape[1] != len(entry.down):
            raise KernelError("load_adapters: 'up' and 'down' differ in rank.")
    return ReferenceAdapters(tuple(adapters), *shapes.pop())
