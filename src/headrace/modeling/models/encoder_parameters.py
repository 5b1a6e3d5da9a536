"""From facts and names to the list of an encoder's parameters, checked against the tensors of the checkpoint."""

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.core.errors import ModelLoadError
from headrace.modeling.models.pieces import VOCABULARY_BITS, Pieces
from headrace.modeling.spec import EncoderSpec
from headrace.modeling.weights.parameters import ParameterKind, ParameterSpec, Source


@dataclass(frozen=True, slots=True)
class EncoderNames:
    """Names without `.weight` or `.bias`, as in `TensorNames`; `pooler` and `classifier` are whole."""

    embed: str
    positions: str
    token_types: str
    embed_norm: str
    layer: str
    q: str
    k: str
    v: str
    output: str
    attention_norm: str
    up: str
    down: str
    mlp_norm: str
    pooler: str
    classifier: str
    prefixes: tuple[str, ...]
    ignored: tuple[str, ...] = ()


class EncoderParameterList(Pieces[EncoderNames]):
    """Builds the parameters of one encoder's checkpoint. Every tensor is checked as it is named."""

    def build(self) -> tuple[ParameterSpec, ...]:
        """All parameters: "embed", "positions", "embed_norm", "layers.N.qkv", ..., "pooler", "classifier".

        Every norm and matrix but "embed" has a bias. Raises as `ParameterList.build`.
        """
        spec, names = self._spec, self._names
        assert spec.encoder is not None
        size = spec.hidden_size
        embed = [self._piece(names.embed, spec.vocab_size)]
        found = [self._matrix("embed", embed, size, VOCABULARY_BITS), self._positions(spec.encoder)]
        found += self._norm("embed_norm", names.embed_norm)
        for layer in range(spec.num_layers):
            found += self._layer(layer)
        if spec.encoder.num_labels:
            self._prefix = ""
            found += self._linear("pooler", (names.pooler,), size, size, VOCABULARY_BITS)
            labels = spec.encoder.num_labels
            found += self._linear("classifier", (names.classifier,), labels, size, VOCABULARY_BITS)
            self._prefix = self._find_prefix()
        self._refuse_leftovers(found)
        return tuple(found)

    def _layer(self, layer: int) -> Iterator[ParameterSpec]:
        spec, names = self._spec, self._names
        ours, theirs = f"layers.{layer}.", names.layer.format(layer)
        size, inner = spec.hidden_size, spec.intermediate_size
        heads_size = spec.num_heads * spec.head_size
        qkv = tuple(theirs + name for name in (names.q, names.k, names.v))
        yield from self._linear(ours + "qkv", qkv, heads_size, size)
        yield from self._linear(ours + "output", (theirs + names.output,), size, heads_size)
        yield from self._norm(ours + "attention_norm", theirs + names.attention_norm)
        yield from self._linear(ours + "up", (theirs + names.up,), inner, size)
        yield from self._linear(ours + "down", (theirs + names.down,), size, inner)
        yield from self._norm(ours + "mlp_norm", theirs + names.mlp_norm)

    def _linear(
        self, name: str, tensors: tuple[str, ...], rows: int, num_inputs: int, min_bits: int = 4
    ) -> tuple[ParameterSpec, ParameterSpec]:
        pieces = [self._piece(tensor, rows) for tensor in tensors]
        return self._matrix(name, pieces, num_inputs, min_bits), self._bias(name, pieces)

    def _norm(self, name: str, tensor: str) -> tuple[ParameterSpec, ParameterSpec]:
        size = self._spec.hidden_size
        piece = self._piece(tensor, size)
        weight = self._source(piece, ".weight", (size,))
        return ParameterSpec(name, ParameterKind.VECTOR, (weight,)), self._bias(name, [piece])

    def _positions(self, encoder: EncoderSpec) -> ParameterSpec:
        """One table per token type: the positions with that type's row added, without rows for padding."""
        spec, names, size = self._spec, self._names, self._spec.hidden_size
        table = f"{self._prefix}{names.positions}.weight"
        rows = self._shapes.get(table, (0,))[0]
        first = rows - spec.max_context
        if first < 0:
            raise ModelLoadError(
                f"{self._origin}: '{table}' has {rows} positions, but the context is {spec.max_context}."
            )
        self._source(self._piece(names.positions, rows), ".weight", (rows, size))
        types = self._piece(names.token_types, encoder.num_token_types)
        added = self._source(types, ".weight", (encoder.num_token_types, size))
        sources = tuple(
            Source(table, (first * size, rows * size), added_row=(added.name, kind))
            for kind in range(encoder.num_token_types)
        )
        return ParameterSpec("positions", ParameterKind.VECTOR, sources)
