"""How a family's parameters are found in a checkpoint, as data."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace.kernels.formats import PackedWeight


class ParameterKind(StrEnum):
    """What a parameter becomes when it is loaded."""

    LINEAR = "linear"
    """A matrix [N, K], packed for the kernels (embedding tables too)."""
    VECTOR = "vector"
    """float32 [N]."""


class Transform(StrEnum):
    """What happens to a source before it is packed."""

    NONE = "none"
    ADD_ONE = "add_one"
    """Norm weights stored as w - 1 (Gemma in safetensors)."""
    UNPERMUTE = "unpermute"
    """Rows of query and key heads stored for interleaved rotation (Llama in GGUF) back to half-split."""


@dataclass(frozen=True, slots=True)
class Source:
    """One checkpoint tensor, or a range of its output rows."""

    name: str
    rows: tuple[int, int] | None = None
    transform: Transform = Transform.NONE
    num_heads: int = 0
    """For UNPERMUTE: how many heads the rows make."""
    added_row: tuple[str, int] | None = None
    """For a VECTOR made of the rows of a table: a row of another table, added to each of them."""


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """One parameter of ours: its sources are joined along output rows, in order.

    Adjacent sources of one kernel format are packed as one weight; where formats differ (k-quant files
    store v in more bits than q and k) the parameter has several parts, each with its first column.
    """

    name: str
    kind: ParameterKind
    sources: tuple[Source, ...]
    is_optional: bool = False
    min_bits: int = 4
    """Quantising at load leaves at least this many bits; 8 for embeddings and output heads."""


@dataclass(frozen=True, slots=True)
class PackedPart:
    """Some output columns of a loaded LINEAR: those from `first_column` on."""

    weight: "PackedWeight"
    first_column: int


LoadedParameter: TypeAlias = "tuple[PackedPart, ...] | NDArray[np.float32]"
"""A LINEAR is its parts, in column order; a VECTOR is float32 [N]."""
