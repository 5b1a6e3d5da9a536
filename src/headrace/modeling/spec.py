"""The facts of one model, normalised once from GGUF metadata or config.json."""

from msgspec import Struct

from headrace.kernels.ops import Activation


class RopeSpec(Struct, frozen=True):
    """Rotary embedding of some layers: inverse frequencies are computed from this, once."""

    theta: float = 10_000.0
    rotary_size: int = 0
    """Elements of each head that rotate; 0 means all."""
    kind: str = "default"
    """default | linear | llama3 | yarn | longrope."""
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 0
    frequency_factors: tuple[float, ...] = ()
    """Divisors per frequency, when the checkpoint carries them (GGUF `rope_freqs.weight`, longrope)."""
    attention_factor: float = 1.0
    """Multiplies cos and sin."""


class LayerSpec(Struct, frozen=True):
    """What may differ between the layers of one model."""

    window: int = 0
    """Tokens that a query sees, itself included; 0 is all."""
    rope: int = 0
    """Index into `ModelSpec.ropes`."""


class ModelSpec(Struct, frozen=True, kw_only=True):
    """One decoder-only model. Families differ in these values and nothing else."""

    family: str
    """llama | mistral | qwen2 | qwen3 | gemma2 | gemma3 | phi3."""
    vocab_size: int  # V
    hidden_size: int  # C
    intermediate_size: int  # I
    num_heads: int  # H
    num_kv_heads: int  # G
    head_size: int  # D
    max_context: int
    norm_eps: float
    layers: tuple[LayerSpec, ...]
    ropes: tuple[RopeSpec, ...]
    activation: Activation = Activation.SILU
    attention_scale: float = 0.0
    """0 means 1 / sqrt(D)."""
    attention_soft_cap: float = 0.0
    logit_soft_cap: float = 0.0
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    has_qkv_bias: bool = False
    has_qk_norm: bool = False
    has_post_norms: bool = False
    """RMSNorm on the output of attention and MLP, before the residual (Gemma 2 and 3)."""
    has_tied_head: bool = False

    @property
    def num_layers(self) -> int:
        return len(self.layers)
