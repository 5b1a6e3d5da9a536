"""From facts and names to the list of a decoder's parameters, checked against the tensors of the checkpoint."""

from collections.abc import Iterator

from headrace.modeling.models.names import TensorNames
from headrace.modeling.models.pieces import VOCABULARY_BITS, Piece, Pieces
from headrace.modeling.weights.parameters import ParameterKind, ParameterSpec


class ParameterList(Pieces[TensorNames]):
    """Builds the parameters of one decoder's checkpoint. Every tensor is checked as it is named."""

    def build(self) -> tuple[ParameterSpec, ...]:
        """All parameters: "embed", "layers.N.qkv", ..., "norm", "head" (absent when it is tied).

        Raises ModelLoadError for a tensor that is missing or has the wrong shape, and
        UnsupportedModelError for one inside a layer that the family does not have.
        """
        spec = self._spec
        size = spec.hidden_size
        embed = [self._piece(self._names.embed, spec.vocab_size)]
        found = [self._matrix("embed", embed, size, VOCABULARY_BITS)]
        for layer in range(spec.num_layers):
            found += self._layer(layer)
        found.append(self._norm("norm", self._names.norm, size))
        if not spec.has_tied_head:
            head = next((n for n in self._names.heads if f"{n}.weight" in self._shapes), None)
            name = self._names.heads[0] if head is None else head
            rows = [Piece(name, spec.vocab_size)]
            found.append(self._matrix("head", rows, size, VOCABULARY_BITS))
        self._refuse_leftovers(found)
        return tuple(found)

    def _layer(self, layer: int) -> Iterator[ParameterSpec]:
        spec, names = self._spec, self._names
        ours, theirs = f"layers.{layer}.", names.layer.format(layer)
        size = spec.hidden_size
        heads_size = spec.num_heads * spec.head_size
        yield self._norm(ours + "attention_norm", theirs + names.attention_norm, size)
        qkv = self._qkv(theirs)
        yield self._matrix(ours + "qkv", qkv, size)
        if spec.has_qkv_bias:
            yield self._bias(ours + "qkv", qkv)
        if spec.has_qk_norm:
            yield self._norm(ours + "q_norm", theirs + names.q_norm, spec.head_size)
            yield self._norm(ours + "k_norm", theirs + names.k_norm, spec.head_size)
        output = [self._piece(theirs + names.output, size)]
        yield self._matrix(ours + "output", output, heads_size)
        if spec.has_output_bias:
            yield self._bias(ours + "output", output)
        if spec.has_post_norms:
            yield self._norm(ours + "attention_post_norm", theirs + names.attention_post_norm, size)
        yield from self._mlp(ours, theirs)

    def _mlp(self, ours: str, theirs: str) -> Iterator[ParameterSpec]:
        spec, names = self._spec, self._names
        size = spec.hidden_size
        yield self._norm(ours + "mlp_norm", theirs + names.mlp_norm, size)
        gate_up = self._gate_up(theirs)
        down = [self._piece(theirs + names.down, size)]
        yield self._matrix(ours + "gate_up", gate_up, size)
        yield self._matrix(ours + "down", down, spec.intermediate_size)
        if spec.has_mlp_bias:
            yield self._bias(ours + "gate_up", gate_up)
            yield self._bias(ours + "down", down)
        if spec.has_post_norms:
            yield self._norm(ours + "mlp_post_norm", theirs + names.mlp_post_norm, size)

    def _qkv(self, theirs: str) -> list[Piece]:
        spec, names = self._spec, self._names
        heads, kv_heads = spec.num_heads, spec.num_kv_heads
        joined = self._piece(theirs + names.qkv, (heads + 2 * kv_heads) * spec.head_size)
        if f"{joined.name}.weight" in self._shapes:
            return [joined]
        transform = names.query_key_transform
        return [
            self._piece(theirs + names.q, heads * spec.head_size, transform, heads),
            self._piece(theirs + names.k, kv_heads * spec.head_size, transform, kv_heads),
            self._piece(theirs + names.v, kv_heads * spec.head_size),
        ]

    def _gate_up(self, theirs: str) -> list[Piece]:
        size = self._spec.intermediate_size
        gate = self._piece(theirs + self._names.gate, size)
        joined = self._piece(theirs + self._names.gate_up, 2 * size)
        if f"{gate.name}.weight" not in self._shapes and f"{joined.name}.weight" in self._shapes:
            return [joined]
        return [gate, self._piece(theirs + self._names.up, size)]

    def _norm(self, name: str, tensor: str, size: int) -> ParameterSpec:
        piece = self._piece(tensor, size, self._names.norm_transform)
        return ParameterSpec(name, ParameterKind.VECTOR, (self._source(piece, ".weight", (size,)),))
