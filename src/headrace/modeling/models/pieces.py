"""Parts of parameters, checked against the tensors of a checkpoint as they are named."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from headrace.core.errors import ModelLoadError, UnsupportedModelError
from headrace.modeling.spec import ModelSpec
from headrace.modeling.weights.parameters import ParameterKind, ParameterSpec, Source, Transform

Shapes = Mapping[str, tuple[int, ...]]

#: Embeddings and heads suffer most when float weights are quantised at load.
VOCABULARY_BITS = 8


class Names(Protocol):
    """What the names of all families have."""

    @property
    def embed(self) -> str: ...
    @property
    def layer(self) -> str: ...
    @property
    def prefixes(self) -> tuple[str, ...]: ...
    @property
    def ignored(self) -> tuple[str, ...]: ...


N = TypeVar("N", bound=Names)


@dataclass(frozen=True, slots=True)
class Piece:
    """One tensor that a parameter is made of, without its suffix, and how many rows it must have."""

    name: str
    rows: int
    transform: Transform = Transform.NONE
    num_heads: int = 0


class Pieces(Generic[N]):
    """Finds the tensors of one checkpoint. Raises ModelLoadError for one that is missing or has another shape."""

    def __init__(self, spec: ModelSpec, names: N, shapes: Shapes, origin: str) -> None:
        self._spec = spec
        self._names = names
        self._shapes = shapes
        self._origin = origin
        self._prefix = self._find_prefix()

    # ---- one parameter -------------------------------------------------------------------------

    def _matrix(
        self, name: str, pieces: list[Piece], num_inputs: int, min_bits: int = 4
    ) -> ParameterSpec:
        sources = tuple(
            self._source(piece, ".weight", (piece.rows, num_inputs)) for piece in pieces
        )
        return ParameterSpec(name, ParameterKind.LINEAR, sources, min_bits=min_bits)

    def _bias(self, name: str, pieces: list[Piece]) -> ParameterSpec:
        sources = tuple(self._source(piece, ".bias", (piece.rows,)) for piece in pieces)
        return ParameterSpec(f"{name}.bias", ParameterKind.VECTOR, sources)

    def _piece(
        self, name: str, rows: int, transform: Transform = Transform.NONE, num_heads: int = 0
    ) -> Piece:
        return Piece(self._prefix + name, rows, transform, num_heads)

    def _source(self, piece: Piece, suffix: str, shape: tuple[int, ...]) -> Source:
        name = piece.name + suffix
        found = self._shapes.get(name)
        if found is None:
            raise ModelLoadError(
                f"{self._origin} lacks the tensor '{name}' that a {self._spec.family} model has."
            )
        if found != shape:
            raise ModelLoadError(
                f"{self._origin}: '{name}' has shape {list(found)}, but the model's sizes ask for "
                f"{list(shape)}."
            )
        return Source(name, None, piece.transform, piece.num_heads)

    # ---- the checkpoint as a whole -------------------------------------------------------------

    def _find_prefix(self) -> str:
        for prefix in self._names.prefixes:
            if f"{prefix}{self._names.embed}.weight" in self._shapes:
                return prefix
        return self._names.prefixes[0]

    def _refuse_leftovers(self, parameters: list[ParameterSpec]) -> None:
        """A layer tensor that nothing reads means that the model computes something else."""
        known = {source.name for parameter in parameters for source in parameter.sources}
        before, after = (re.escape(part) for part in self._names.layer.split("{}"))
        of_layer = re.compile(f"{re.escape(self._prefix)}{before}(\\d+){after}(.*)")
        for name in self._shapes:
            match = of_layer.fullmatch(name)
            if match is None or name in known or match[2] in self._names.ignored:
                continue
            if int(match[1]) < self._spec.num_layers:
                raise UnsupportedModelError(
                    f"{self._origin}: the tensor '{name}' has no place in a {self._spec.family} "
                    "model, so answers would be wrong."
                )
