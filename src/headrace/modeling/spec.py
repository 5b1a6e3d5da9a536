"""The facts of one model, normalised once from GGUF metadata or config.json."""

from msgspec import Struct
from msgspec.structs import replace

from headrace.core.errors import ModelLoadError
from headrace.kernels.values import Activation


class RopeSpec(Struct, frozen=True):
    """Rotary embedding of some layers: inverse frequencies are computed from this, once."""

    theta: float = 10_000.0
    rotary_size: int = 0
    """Elements of each head that rotate; 0 means all."""
    kind: str = "default"
    """default | linear | llama3 | yarn | longrope; none turns nothing."""
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    """YaRN: frequencies that turn more often than this over the original context stay as they are."""
    beta_slow: float = 1.0
    """YaRN: those that turn less often are divided by `factor`."""
    is_truncated: bool = True
    """YaRN: the two bounds are rounded outwards to whole frequencies."""
    original_context: int = 0
    frequency_factors: tuple[float, ...] = ()
    """Divisors per frequency, when the checkpoint carries them (GGUF `rope_freqs.weight`, longrope)."""
    long_frequency_factors: tuple[float, ...] = ()
    """Longrope: the divisors when the served context is longer than the original one."""
    attention_factor: float = 1.0
    """Multiplies cos and sin."""


class LayerSpec(Struct, frozen=True):
    """What may differ between the layers of one model."""

    window: int = 0
    """Tokens that a query sees, itself included; 0 is all."""
    rope: int = 0
    """Index into `ModelSpec.ropes`."""


class KVGroup(Struct, frozen=True):
    """Layers that see the same tokens and therefore share block tables."""

    window: int
    """Tokens that a query sees; 0 is all."""
    layers: tuple[int, ...]
    """Counted from the first layer of the range that was asked for."""


class EncoderSpec(Struct, frozen=True):
    """What encoders of BERT's kind have beside a decoder's values: learned positions, norms with biases
    behind attention and MLP, no gate.
    """

    num_positions: int
    """The longest text, whatever context is served."""
    num_token_types: int = 1
    """Each has a position table of its own: positions of type k begin at k * num_positions."""
    num_labels: int = 0
    """Outputs of the classification head; 0 without one."""


class ModelSpec(Struct, frozen=True, kw_only=True):
    """One decoder-only model, or one encoder. Families differ in these values and nothing else."""

    family: str
    """llama | mistral | qwen2 | qwen3 | gemma2 | gemma3 | phi3 | bert."""
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
    has_output_bias: bool = False
    """A bias on attention's output projection."""
    has_mlp_bias: bool = False
    """Biases on gate, up and down."""
    has_qk_norm: bool = False
    has_post_norms: bool = False
    """RMSNorm on the output of attention and MLP, before the residual (Gemma 2 and 3)."""
    has_tied_head: bool = False
    encoder: EncoderSpec | None = None
    """Set: every token sees all others, and there is no head that predicts tokens."""

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def kv_groups(self, layers: range | None = None) -> tuple[KVGroup, ...]:
        """Layers of the range (default all) by window, in order of each window's first layer.

        `KVLayout.layer_groups` and the ledger's windows follow from it; see `layer_groups`.
        """
        members: dict[int, list[int]] = {}
        for index, layer in enumerate(self._select(layers)):
            members.setdefault(layer.window, []).append(index)
        return tuple(KVGroup(window, tuple(found)) for window, found in members.items())

    def layer_groups(self, layers: range | None = None) -> tuple[int, ...]:
        """The index into `kv_groups` of each layer of the range."""
        windows = [group.window for group in self.kv_groups(layers)]
        return tuple(windows.index(layer.window) for layer in self._select(layers))

    def with_max_context(self, max_context: int) -> "ModelSpec":
        """The same model served with at most this context.

        Windows that no longer bite become full attention, and longrope picks its factors for it.
        """
        if not 0 < max_context <= self.max_context:
            raise ModelLoadError(
                f"A context of {max_context} tokens is not possible; this model has {self.max_context}."
            )
        layers = tuple(
            replace(layer, window=0 if layer.window >= max_context else layer.window)
            for layer in self.layers
        )
        return replace(self, max_context=max_context, layers=layers)

    def _select(self, layers: range | None) -> tuple[LayerSpec, ...]:
        if layers is None:
            return self.layers
        return tuple(self.layers[index] for index in layers)
