"""The few weight formats that kernels read; packed by `packing.py`.

A file type (Q4_K, Q6_K, bf16 safetensors, …) adds an unpacker in `modeling/quantization` that yields a
`QuantizedMatrix` or a float matrix; it never adds a kernel. Shape legend: N outputs, K inputs, g group.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class WeightFormat(StrEnum):
    """How the weights of a linear layer lie in memory."""

    W4G32 = "w4g32"
    """4-bit codes in groups of 32 inputs."""
    W8G32 = "w8g32"
    """8-bit codes in groups of 32 inputs."""
    W8G16 = "w8g16"
    """8-bit codes in groups of 16 inputs."""
    BF16 = "bf16"
    F16 = "f16"
    F32 = "f32"

    @property
    def is_quantized(self) -> bool:
        """Codes with scales, multiplied with int8 activations."""
        return self in (WeightFormat.W4G32, WeightFormat.W8G32, WeightFormat.W8G16)

    @property
    def group_size(self) -> int:
        """Inputs that share one scale; 1 for float formats."""
        return {"w4g32": 32, "w8g32": 32, "w8g16": 16}.get(self.value, 1)


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """weight[n, k] = scales[n, k // g] * (codes[n, k] - offset) + mins[n, k // g].

    At most one of `mins` and a non-zero `offset` is there; `pack` refuses both.
    """

    format: WeightFormat
    codes: NDArray[np.uint8]  # [N, K], 0..15 for w4, 0..255 for w8
    scales: NDArray[np.float32]  # [N, K / g]
    mins: NDArray[np.float32] | None = None  # [N, K / g]
    offset: int = 0


Matrix = QuantizedMatrix | NDArray[np.float32] | NDArray[np.float16] | NDArray[np.uint16]
"""What an unpacker yields; uint16 arrays hold bf16 bits."""


@dataclass(frozen=True, slots=True)
class LowRank:
    """What one adapter adds to a linear, `up . (down . x)` (LoRA, Hu et al., 2021).

    The adapter's own scale is a factor of `up` already.
    """

    down: NDArray[np.float32]  # [rank, K]
    up: NDArray[np.float32]  # [N, rank]


class Adapters(Protocol):
    """What adapters 1 to `capacity` of `StepInputs.adapters` add to one linear."""

    def set(self, index: int, entry: LowRank | None) -> None:
        """From the next step on; None where this adapter leaves the linear alone.

        Not while a step runs that uses this adapter. Raises KernelError for shapes that do not fit.
        """
        ...


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight in the panel layout that the kernels stream; drawn in `panels.py`.

    `data` is one-dimensional and starts at a multiple of 64 bytes. It may be a read-only view of a mapped
    file; whoever loads the weight keeps a reference to it.
    """

    format: WeightFormat
    num_outputs: int  # N
    num_inputs: int  # K
    has_mins: bool
    offset: int
    data: NDArray[np.uint8]
