"""Load parameters as they are, without packing: an independent, float32 path from file to model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.kernels.formats import WeightFormat
from headrace.kernels.reference.backend import ReferenceBackend
from headrace.kernels.reference.weights import ReferenceWeight
from headrace.modeling.quantization.dequantize import dequantize
from headrace.modeling.weights.checkpoint import Checkpoint
from headrace.modeling.weights.parameters import (
    PackedPart,
    ParameterKind,
    ParameterSpec,
    Source,
    Transform,
)


@dataclass(frozen=True)
class PlainWeight:
    """Stands where a packed weight would."""

    matrix: NDArray[np.float32]
    format: WeightFormat = WeightFormat.F32

    @property
    def num_outputs(self) -> int:
        return int(self.matrix.shape[0])


class PlainReferenceBackend(ReferenceBackend):
    """The reference, with float32 matrices as weights."""

    def load_weight(self, weight: Any) -> ReferenceWeight:
        return super().load_weight(weight.matrix)


def load_plain(checkpoint: Checkpoint, specs: Sequence[ParameterSpec]) -> Mapping[str, Any]:
    """Every parameter in float32; a LINEAR is one part."""
    loaded: dict[str, Any] = {}
    for spec in specs:
        joined = np.concatenate([_read(checkpoint, source) for source in spec.sources])
        if spec.kind is ParameterKind.VECTOR:
            loaded[spec.name] = joined.reshape(-1)
        else:
            loaded[spec.name] = (PackedPart(PlainWeight(joined), 0),)  # type: ignore[arg-type]
    return loaded


def _read(checkpoint: Checkpoint, source: Source) -> NDArray[np.float32]:
    shape = checkpoint.tensors[source.name].shape
    values = dequantize(checkpoint.matrix(source.name)).reshape(shape)
    if source.rows is not None:
        values = values[slice(*source.rows)]
    if source.transform is Transform.ADD_ONE:
        return values + np.float32(1)
    if source.transform is Transform.UNPERMUTE:
        heads = values.reshape(source.num_heads, values.shape[0] // source.num_heads // 2, 2, -1)
        return heads.swapaxes(1, 2).reshape(values.shape)
    return values
