"""From checkpoint tensors to loaded parameters, one at a time: no more than one is in memory unpacked.

A parameter's sources are cut to their rows, brought into our row order, quantised if asked, joined
where their kernel format is the same, and packed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ModelLoadError
from headrace.kernels.formats import Matrix, QuantizedMatrix, WeightFormat
from headrace.kernels.packing import pack, packed_size
from headrace.kernels.shapes import WeightShape
from headrace.modeling.quantization.quantize import quantize
from headrace.modeling.weights.checkpoint import Checkpoint
from headrace.modeling.weights.parameters import (
    LoadedParameter,
    PackedPart,
    ParameterKind,
    ParameterSpec,
    Source,
    Transform,
)

FLOAT_FORMATS: Final = {
    "f4": WeightFormat.F32,
    "f2": WeightFormat.F16,
    "u2": WeightFormat.BF16,
}


class _Kind(NamedTuple):
    """What adjacent sources must share to be packed as one weight."""

    format: WeightFormat
    has_mins: bool
    offset: int


@dataclass(frozen=True, slots=True)
class PartOutline:
    """A `PackedPart` without its data."""

    weight: WeightShape
    first_column: int
    has_mins: bool

    @property
    def nbytes(self) -> int:
        """Of its data."""
        shape = self.weight
        return packed_size(
            shape.format, shape.num_outputs, shape.num_inputs, has_mins=self.has_mins
        )


#: Parts of a matrix, or a vector's length.
ParameterOutline = tuple[PartOutline, ...] | int


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of one source that are wanted, before its transform."""

    source: Source
    start: int
    stop: int

    @property
    def count(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Converter:
    """Turns the parameters of one checkpoint into what kernels read."""

    checkpoint: Checkpoint
    option: str | None = None
    """Quantise float matrices: int8 or int4."""

    def convert(self, specs: Sequence[ParameterSpec]) -> Iterator[tuple[str, LoadedParameter]]:
        """Each parameter once, in order. Raises ModelLoadError naming the tensor that is at fault."""
        for spec in self._there(specs):
            is_linear = spec.kind is ParameterKind.LINEAR
            yield spec.name, self._linear(spec) if is_linear else self._vector(spec)

    def outline(self, specs: Sequence[ParameterSpec]) -> Iterator[tuple[str, ParameterOutline]]:
        """What `convert` would yield, without a look at any weight."""
        for spec in self._there(specs):
            if spec.kind is ParameterKind.LINEAR:
                yield spec.name, self._linear_outline(spec)
            else:
                yield spec.name, self._length(spec)

    def _there(self, specs: Sequence[ParameterSpec]) -> Iterator[ParameterSpec]:
        seen: set[str] = set()
        for spec in specs:
            if spec.name in seen:
                raise ModelLoadError(f"The parameter '{spec.name}' is described twice.")
            seen.add(spec.name)
            missing = [s.name for s in spec.sources if s.name not in self.checkpoint.tensors]
            if missing and spec.is_optional:
                continue
            if missing or not spec.sources:
                what = f"the tensor '{missing[0]}'" if missing else "any tensor"
                raise ModelLoadError(f"{self.checkpoint.path.name} lacks {what} for '{spec.name}'.")
            yield spec

    # ---- vectors -------------------------------------------------------------------------------

    def _vector(self, spec: ParameterSpec) -> NDArray[np.float32]:
        pieces = []
        for source in spec.sources:
            values = self.checkpoint.vector(source.name)
            rows = self._select(source, len(values))
            values = values[rows.start : rows.stop]
            if source.transform is Transform.UNPERMUTE:
                values = values[half_split_order(rows.count, source.num_heads)]
            if source.transform is Transform.ADD_ONE:
                values = values + np.float32(1)
            if source.added_row is not None:
                values = self._with_row(values, *source.added_row)
            pieces.append(values)
        vector = np.concatenate(pieces).astype(np.float32, copy=False)
        if not np.isfinite(vector).all():
            raise ModelLoadError(f"'{spec.name}' holds values that are not finite.")
        return vector

    def _length(self, spec: ParameterSpec) -> int:
        """Elements of a vector."""
        tensors = self.checkpoint.tensors
        return sum(self._select(s, tensors[s.name].num_elements).count for s in spec.sources)

    def _with_row(self, values: NDArray[np.float32], name: str, row: int) -> NDArray[np.float32]:
        """Rows of a table, one behind the other, each with a row of the table `name` added."""
        shape = self.checkpoint.tensors[name].shape
        if len(shape) != 2 or not 0 <= row < shape[0] or len(values) % max(1, shape[1]):
            raise ModelLoadError(f"The tensor '{name}' has no row {row} to add.")
        added = self.checkpoint.vector(name).reshape(shape)[row]
        rows: NDArray[np.float32] = values.reshape(-1, shape[1]) + added
        return rows.reshape(-1)

    # ---- matrices ------------------------------------------------------------------------------

    def _linear(self, spec: ParameterSpec) -> tuple[PackedPart, ...]:
        parts: list[PackedPart] = []
        first_column = 0
        for _, rows in self._groups(spec):
            weight = pack(_join([self._matrix(each, spec) for each in rows]))
            parts.append(PackedPart(weight, first_column))
            first_column += weight.num_outputs
        return tuple(parts)

    def _linear_outline(self, spec: ParameterSpec) -> tuple[PartOutline, ...]:
        parts: list[PartOutline] = []
        first_column = 0
        for kind, rows in self._groups(spec):
            num_inputs = self.checkpoint.tensors[rows[0].source.name].shape[-1]
            weight = WeightShape(kind.format, sum(each.count for each in rows), num_inputs)
            parts.append(PartOutline(weight, first_column, kind.has_mins))
            first_column += weight.num_outputs
        return tuple(parts)

    def _groups(self, spec: ParameterSpec) -> Iterator[tuple[_Kind, list[_Rows]]]:
        """Adjacent sources of one kind, which become one weight."""
        widths = {self.checkpoint.tensors[source.name].shape[-1] for source in spec.sources}
        if len(widths) != 1:
            raise ModelLoadError(f"The tensors of '{spec.name}' differ in width: {sorted(widths)}.")
        selected = [self._select(source, self._num_rows(source)) for source in spec.sources]
        if not all(rows.count for rows in selected):
            raise ModelLoadError(f"A tensor of '{spec.name}' has no rows.")
        kinds = [self._kind(rows, spec) for rows in selected]
        for kind, group in groupby(zip(kinds, selected, strict=True), key=lambda pair: pair[0]):
            yield kind, [rows for _, rows in group]

    def _kind(self, rows: _Rows, spec: ParameterSpec) -> _Kind:
        """Known from no rows at all."""
        empty = self.checkpoint.matrix(rows.source.name, (rows.start, rows.start))
        matrix = self._quantize(empty, spec)
        if isinstance(matrix, QuantizedMatrix):
            return _Kind(matrix.format, matrix.mins is not None, matrix.offset)
        return _Kind(FLOAT_FORMATS[matrix.dtype.str[1:]], False, 0)

    def _matrix(self, rows: _Rows, spec: ParameterSpec) -> Matrix:
        """The rows of one source in our order, quantised if that was asked for."""
        source = rows.source
        if source.transform is Transform.ADD_ONE:
            raise ModelLoadError(f"'{spec.name}' is a matrix; add_one is for vectors.")
        matrix = self.checkpoint.matrix(source.name, (rows.start, rows.stop))
        if source.transform is Transform.UNPERMUTE:
            matrix = _take(matrix, half_split_order(rows.count, source.num_heads))
        matrix = self._quantize(matrix, spec)
        if isinstance(matrix, QuantizedMatrix):
            _check_scales(matrix, source.name)
        return matrix

    def _quantize(self, matrix: Matrix, spec: ParameterSpec) -> Matrix:
        if self.option is None:
            return matrix
        return quantize(matrix, self.option, min_bits=spec.min_bits)

    # ---- rows ----------------------------------------------------------------------------------

    def _num_rows(self, source: Source) -> int:
        info = self.checkpoint.tensors[source.name]
        return info.num_elements // max(1, info.shape[-1]) if info.shape else 1

    def _select(self, source: Source, num_rows: int) -> _Rows:
        """The source's rows, checked."""
        start, stop = source.rows or (0, num_rows)
        if not 0 <= start <= stop <= num_rows:
            raise ModelLoadError(
                f"The tensor '{source.name}' has {num_rows} rows, but {start} to {stop} are needed."
            )
        heads = source.num_heads
        if source.transform is Transform.UNPERMUTE and (heads <= 0 or (stop - start) % (2 * heads)):
            raise ModelLoadError(
                f"The {stop - start} rows of '{source.name}' do not make {heads} rotated heads."
            )
        return _Rows(source, start, stop)


def half_split_order(num_rows: int, num_heads: int) -> NDArray[np.intp]:
    """Where each row of half-split heads lies in heads stored for interleaved rotation.

    GGUF's Llama conversion moves row r and row r + D/2 of a head next to each other; this undoes it.
    """
    order = np.arange(num_rows, dtype=np.intp)
    return order.reshape(num_heads, -1, 2).swapaxes(1, 2).reshape(-1)


def _take(matrix: Matrix, order: NDArray[np.intp]) -> Matrix:
    if not isinstance(matrix, QuantizedMatrix):
        return matrix[order]
    mins = None if matrix.mins is None else matrix.mins[order]
    return replace(matrix, codes=matrix.codes[order], scales=matrix.scales[order], mins=mins)


def _join(pieces: list[Matrix]) -> Matrix:
    """Matrices of one kind, one under the other."""
    if len(pieces) == 1:
        return pieces[0]
    quantized = [piece for piece in pieces if isinstance(piece, QuantizedMatrix)]
    if not quantized:
        floats: list[NDArray[Any]] = [p for p in pieces if not isinstance(p, QuantizedMatrix)]
        return np.concatenate(floats)
    minima = [piece.mins for piece in quantized if piece.mins is not None]
    return replace(
        quantized[0],
        codes=np.concatenate([piece.codes for piece in quantized]),
        scales=np.concatenate([piece.scales for piece in quantized]),
        mins=np.concatenate(minima) if minima else None,
    )


def _check_scales(matrix: QuantizedMatrix, name: str) -> None:
    for numbers in (matrix.scales, matrix.mins):
        if numbers is not None and not np.isfinite(numbers).all():
            raise ModelLoadError(f"The tensor '{name}' holds scales that are not finite numbers.")
