"""The encoder: BERT's skeleton, with norms behind attention and MLP (Devlin et al., 2019; Vaswani et al., 2017)."""

from collections.abc import Mapping

from headrace.core.errors import ModelLoadError
from headrace.kernels.ops import Backend, KVCache
from headrace.kernels.values import Buffer, Rows, StepLimits
from headrace.modeling.collectives import SingleRank
from headrace.modeling.layers.attention import Attention
from headrace.modeling.layers.mlp import PlainMLP
from headrace.modeling.layers.recording import Recording
from headrace.modeling.layers.rope import inverse_frequencies
from headrace.modeling.parts import Parts
from headrace.modeling.sharding import Shard
from headrace.modeling.spec import ModelSpec
from headrace.modeling.states import RecordedStates, check_states_layout
from headrace.modeling.weights.parameters import LoadedParameter


class Encoder:
    """All layers of a model, and its classification head if it has one."""

    def __init__(self, spec: ModelSpec, parameters: Mapping[str, LoadedParameter]) -> None:
        """`parameters` are those of `registry.describe`."""
        if spec.encoder is None:
            raise ModelLoadError(f"A {spec.family} model is not an encoder.")
        self.spec = spec
        self._num_labels = spec.encoder.num_labels
        self._parameters = parameters

    def record(self, backend: Backend, limits: StepLimits, kv_cache: KVCache) -> RecordedStates:
        """Record one step over whole texts, whose keys are not kept (`states.py`).

        `StepInputs.positions` index the position tables of all token types, one behind the other;
        `output_rows` are the texts' first tokens, of which the head makes scores.
        """
        spec = self.spec
        check_states_layout(spec, kv_cache.layout)
        parts = Parts(backend, spec, self._parameters)
        recorder = backend.recorder(limits, kv_cache)
        recording = Recording(recorder, Shard(), SingleRank())
        states = recording.scratch("states", Rows.TOKENS, spec.hidden_size)
        recorder.embed(parts.linear("embed").table, states)
        recorder.add_positions(parts.vector("positions"), states)
        parts.layer_norm("embed_norm").record_in_place(recording, states)
        # Learned positions turn nothing: the table of angles is that of frequency zero.
        frequencies = inverse_frequencies(spec.ropes[0], spec.head_size, spec.max_context)
        still = recording.scratch("rope", Rows.TOKENS, 2 * len(frequencies))
        recorder.rope_table(still, backend.load_vector(frequencies))
        recording.ropes = (still,)
        for layer in range(spec.num_layers):
            self._record_layer(recording, parts, layer, states)
        scores = self._record_head(recording, parts, states) if self._num_labels else None
        return RecordedStates(recorder.finish(), states, scores)

    def _record_layer(self, recording: Recording, parts: Parts, layer: int, states: Buffer) -> None:
        """`states = norm(states + attention)`, then the same with the MLP."""
        spec, prefix = self.spec, f"layers.{layer}."
        attention = Attention(
            spec=spec, layer=spec.layers[layer], index=0, qkv=parts.linear(prefix + "qkv")
        )
        output = parts.linear(prefix + "output")
        mixed = attention.record(recording, states, output)
        output.record(recording, mixed, states, accumulate=True)
        parts.layer_norm(prefix + "attention_norm").record_in_place(recording, states)
        down = parts.linear(prefix + "down")
        active = PlainMLP(spec, parts.linear(prefix + "up")).record(recording, states, down)
        down.record(recording, active, states, accumulate=True)
        parts.layer_norm(prefix + "mlp_norm").record_in_place(recording, states)

    def _record_head(self, recording: Recording, parts: Parts, states: Buffer) -> Buffer:
        """BERT's pooler, tanh of a linear on the first token, and the labels' linear."""
        size = self.spec.hidden_size
        first, pooled = (
            recording.scratch(name, Rows.OUTPUTS, size) for name in ("first", "pooled")
        )
        recording.recorder.gather_outputs(states, first)
        parts.linear("pooler").record(recording, first, pooled)
        recording.recorder.soft_cap(pooled, cap=1.0)  # which is tanh
        scores = recording.scratch("scores", Rows.OUTPUTS, self._num_labels)
        parts.linear("classifier").record(recording, pooled, scores)
        return scores
