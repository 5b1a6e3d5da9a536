"""Specification of adapters: what each adds to a row of a linear."""

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import KernelError
from headrace.kernels.formats import LowRank
from headrace.kernels.reference.linear import linear_float

Float32 = NDArray[np.float32]


class ReferenceAdapters:
    """The adapters of one linear; index 0 is the base model."""

    def __init__(self, num_outputs: int, num_inputs: int, capacity: int) -> None:
        self.num_outputs = num_outputs  # N
        self.num_inputs = num_inputs  # K
        self._entries: list[LowRank | None] = [None] * capacity

    def set(self, index: int, entry: LowRank | None) -> None:
        """Part of `ops.Adapters`."""
        check_entry(self.num_outputs, self.num_inputs, entry)
        if not 1 <= index <= len(self._entries):
            raise KernelError(f"adapters: there is no adapter {index}.")
        self._entries[index - 1] = entry

    def added(self, index: int, x: Float32) -> Float32 | None:
        """What an adapter adds to one row [K]; None where that is nothing. Raises KernelError."""
        if index > len(self._entries):
            raise KernelError(f"adapt: there is no adapter {index}.")
        entry = self._entries[index - 1] if index else None
        if entry is None:
            return None
        added: Float32 = linear_float(linear_float(x[None, :], entry.down), entry.up)[0]
        return added


def check_entry(num_outputs: int, num_inputs: int, entry: LowRank | None) -> None:
    """Raise KernelError where matrices do not fit together, or the linear."""
    if entry is None:
        return
    if entry.up.shape[1] != len(entry.down):
        raise KernelError("adapters: 'up' and 'down' differ in rank.")
    if (len(entry.up), entry.down.shape[1]) != (num_outputs, num_inputs):
        raise KernelError(f"adapters: the entry is not for a linear [{num_outputs}, {num_inputs}].")
