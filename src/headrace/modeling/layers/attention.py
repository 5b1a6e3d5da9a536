"""Self-attention: project, rotate and store, attend."""

from dataclasses import dataclass
from typing import Any

from headrace.kernels.values import Buffer, Rows
from headrace.modeling.layers.linear import Linear
from headrace.modeling.layers.recording import Recording
from headrace.modeling.spec import LayerSpec, ModelSpec


@dataclass(frozen=True, slots=True)
class Attention:
    """One layer's attention, without its output projection."""

    spec: ModelSpec
    layer: LayerSpec
    index: int
    """The layer's place in the KV cache."""
    qkv: Linear
    q_norm: Any = None
    k_norm: Any = None

    def record(self, recording: Recording, x: Buffer, output: Linear) -> Buffer:
        """The mixed values of all heads [T, H * D], as `output` takes them."""
        spec, recorder = self.spec, recording.recorder
        num_heads = len(recording.shard.heads(spec))
        num_kv_heads = len(recording.shard.kv_heads(spec))
        width = (num_heads + 2 * num_kv_heads) * spec.head_size
        qkv = recording.scratch("qkv", Rows.TOKENS, width)
        self.qkv.record(recording, x, qkv)
        recorder.rotate_and_store(
            qkv,
            recording.ropes[self.layer.rope],
            layer=self.index,
            num_heads=num_heads,
            q_norm=self.q_norm,
            k_norm=self.k_norm,
            eps=spec.norm_eps,
        )
        mixed = recording.scratch(
            "mixed", Rows.TOKENS, num_heads * spec.head_size, output.input_dtype
        )
        mass = None if self.layer.window else recording.mass
        recorder.attention(
            qkv,
            mixed,
            layer=self.index,
            num_heads=num_heads,
            scale=spec.attention_scale or spec.head_size**-0.5,
            soft_cap=spec.attention_soft_cap,
            window=self.layer.window,
            is_causal=spec.encoder is None,
            mass=mass,
            adds_mass=recording.has_mass,
        )
        recording.has_mass = recording.has_mass or mass is not None
        return recording.collectives.gather_columns(
            recorder, mixed, spec.num_heads * spec.head_size
        )
