"""The decoder: one skeleton for all families, recorded once and replayed every step."""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.core.errors import KernelError, ModelLoadError
from headrace.kernels.ops import Backend, KVCache, Program
from headrace.kernels.values import Buffer, DType, KVLayout, Rows, StepLimits
from headrace.modeling.adapters.table import AdapterTable
from headrace.modeling.collectives import Collectives, SingleRank
from headrace.modeling.layers.attention import Attention
from headrace.modeling.layers.block import Block, Sublayer
from headrace.modeling.layers.mlp import MLP
from headrace.modeling.layers.recording import Recording
from headrace.modeling.layers.rope import inverse_frequencies
from headrace.modeling.parts import Parts
from headrace.modeling.sharding import Shard
from headrace.modeling.spec import ModelSpec
from headrace.modeling.states import RecordedStates, check_states_layout
from headrace.modeling.weights.parameters import LoadedParameter


@dataclass(frozen=True, slots=True)
class RecordedModel:
    """A program and where its results lie."""

    program: Program
    logits: Buffer | None
    """f32 [R, V]; None for a stage that is not the last."""
    hidden: Buffer
    """f32: the residual stream behind the last layer, [R, C] before the final norm, or [T, C] for a
    stage that is not the last."""
    mass: Buffer | None = None
    """f32 [T, G * max_blocks]: the attention on each block, summed over layers without a window. None unless
    asked for, and without such layers."""


class Decoder:
    """Some or all layers of a model. The first stage embeds, the last one has final norm and head."""

    def __init__(
        self,
        spec: ModelSpec,
        parameters: Mapping[str, LoadedParameter],
        layers: range | None = None,
        *,
        shard: Shard | None = None,
        collectives: Collectives | None = None,
        adapters: AdapterTable | None = None,
    ) -> None:
        """`parameters` are those of `registry.describe`, sliced by `shard_parameters` for a shard."""
        self.spec = spec
        self.layers = range(spec.num_layers) if layers is None else layers
        if not 0 <= self.layers.start < self.layers.stop <= spec.num_layers:
            raise ModelLoadError(f"Layers {self.layers} are not layers of this model.")
        self.shard = shard or Shard()
        self.collectives = collectives or SingleRank()
        self._parameters = parameters
        self._adapters = adapters

    @property
    def is_first(self) -> bool:
        """Whether this stage embeds."""
        return self.layers.start == 0

    @property
    def is_last(self) -> bool:
        """Whether this stage has the final norm and the head."""
        return self.layers.stop == self.spec.num_layers

    def record(
        self, backend: Backend, limits: StepLimits, kv_cache: KVCache, *, mass_blocks: int = 0
    ) -> RecordedModel:
        """Record one step. Buffers are shared by all layers, so the arena is as small as one layer's.

        With `mass_blocks`, the width of block tables, it also tells what attention falls on.
        """
        self._check_layout(kv_cache.layout)
        loader = _DecoderParts(backend, self.spec, self._parameters, self._adapters)
        recorder = backend.recorder(limits, kv_cache)
        recording = Recording(recorder, self.shard, self.collectives)
        if mass_blocks:
            width = kv_cache.layout.num_kv_heads * mass_blocks
            recording.mass = recorder.buffer(Rows.TOKENS, width)
        residual = recording.scratch("residual", Rows.TOKENS, self.spec.hidden_size)
        if self.is_first:
            table = loader.linear("embed").table
            recorder.embed(table, residual, scale=self.spec.embedding_scale)
        else:
            self.collectives.receive(recorder, residual)
        recording.ropes = self._record_ropes(backend, recording)
        for index, layer in enumerate(self.layers):
            is_last = layer == self.spec.num_layers - 1
            residual = loader.block(index, layer).record(recording, residual, is_last=is_last)
        logits = None
        if self.is_last:
            logits = self._record_head(recording, loader, residual)
        else:
            self.collectives.send(recorder, residual)
        mass = recording.mass if recording.has_mass else None
        return RecordedModel(recorder.finish(), logits, residual, mass)

    def record_states(
        self, backend: Backend, limits: StepLimits, kv_cache: KVCache
    ) -> RecordedStates:
        """Record one step over whole texts, whose keys are not kept (`states.py`). Of all layers only."""
        check_states_layout(self.spec, kv_cache.layout)
        loader = _DecoderParts(backend, self.spec, self._parameters, self._adapters)
        recording = Recording(backend.recorder(limits, kv_cache), self.shard, self.collectives)
        residual = recording.scratch("residual", Rows.TOKENS, self.spec.hidden_size)
        recording.recorder.embed(
            loader.linear("embed").table, residual, scale=self.spec.embedding_scale
        )
        recording.ropes = self._record_ropes(backend, recording)
        for layer in self.layers:
            residual = loader.block(0, layer).record(recording, residual, is_last=False)
        states = loader.norm("norm").record(recording, residual, DType.F32)
        return RecordedStates(recording.recorder.finish(), states)

    def _record_ropes(self, backend: Backend, recording: Recording) -> tuple[Buffer, ...]:
        """One table per rope that this stage's layers use, computed once a step."""
        spec = self.spec
        used = {spec.layers[layer].rope for layer in self.layers}
        tables: list[Buffer] = []
        for index, rope in enumerate(spec.ropes):
            frequencies = inverse_frequencies(rope, spec.head_size, spec.max_context)
            table = recording.scratch(f"rope {index}", Rows.TOKENS, 2 * len(frequencies))
            if index in used:
                recording.recorder.rope_table(
                    table, backend.load_vector(frequencies), scale=rope.attention_factor
                )
            tables.append(table)
        return tuple(tables)

    def _record_head(
        self, recording: Recording, loader: "_DecoderParts", residual: Buffer
    ) -> Buffer:
        spec = self.spec
        head = loader.linear("head" if "head" in self._parameters else "embed")
        x = loader.norm("norm").record(recording, residual, head.input_dtype)
        logits = recording.recorder.buffer(Rows.OUTPUTS, spec.vocab_size)
        columns = self.shard.columns(spec.vocab_size)
        head.record(recording, x, logits, first_column=columns.start, scale=spec.logit_scale)
        recording.collectives.share_columns(recording.recorder, logits, columns)
        if spec.logit_soft_cap:
            recording.recorder.soft_cap(logits, cap=spec.logit_soft_cap)
        return logits

    def _check_layout(self, layout: KVLayout) -> None:
        wanted = (
            len(self.layers),
            len(self.shard.kv_heads(self.spec)),
            self.spec.head_size,
            self.spec.layer_groups(self.layers),
        )
        found = (layout.num_layers, layout.num_kv_heads, layout.head_size, layout.layer_groups)
        if wanted != found:
            raise KernelError("The KV cache has another layout than this model's layers.")


class _DecoderParts(Parts):
    """Layers of a decoder."""

    def block(self, index: int, layer: int) -> Block:
        """The layer's number in the model is `layer`, its place in the cache `index`."""
        spec, prefix = self._spec, f"layers.{layer}."
        has_qk_norm = spec.has_qk_norm
        attention = Attention(
            spec=spec,
            layer=spec.layers[layer],
            index=index,
            qkv=self.linear(prefix + "qkv"),
            q_norm=self.vector(prefix + "q_norm") if has_qk_norm else None,
            k_norm=self.vector(prefix + "k_norm") if has_qk_norm else None,
        )
        return Block(
            attention=attention,
            attention_ends=self._ends(prefix + "attention", prefix + "output"),
            mlp=MLP(spec, self.linear(prefix + "gate_up")),
            mlp_ends=self._ends(prefix + "mlp", prefix + "down"),
        )

    def _ends(self, name: str, output: str) -> Sublayer:
        post_norm = self.norm(f"{name}_post_norm") if self._spec.has_post_norms else None
        return Sublayer(self.norm(f"{name}_norm"), self.linear(output), post_norm)
