"""What all families read from config.json in the same way."""

from collections.abc import Callable

from headrace.core.errors import ModelLoadError, UnsupportedModelError
from headrace.kernels.values import Activation
from headrace.modeling.facts import Facts
from headrace.modeling.models.rope_config import rope_from_config
from headrace.modeling.spec import LayerSpec, ModelSpec

MAX_LAYERS = 1024
MAX_HEADS = 1024
MAX_WIDTH = 1 << 20
MAX_VOCAB = 1 << 22

#: config.json's names of the gate functions that the kernels have.
ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "gelu_tanh": Activation.GELU_TANH,
    "gelu_new": Activation.GELU_TANH,
    "gelu": Activation.GELU,
}


def base_spec(facts: Facts, family: str) -> ModelSpec:
    """Sizes, one rope, no windows: a plain Llama with this config's numbers."""
    num_heads = facts.integer("num_attention_heads", maximum=MAX_HEADS)
    hidden_size = facts.integer("hidden_size", maximum=MAX_WIDTH)
    num_layers = facts.integer("num_hidden_layers", maximum=MAX_LAYERS)
    head_size = facts.integer("head_dim", head_size_of(facts, hidden_size, num_heads))
    rope = rope_from_config(facts, head_size)
    return ModelSpec(
        family=family,
        vocab_size=facts.integer("vocab_size", maximum=MAX_VOCAB),
        hidden_size=hidden_size,
        intermediate_size=facts.integer("intermediate_size", maximum=MAX_WIDTH),
        num_heads=num_heads,
        num_kv_heads=facts.integer("num_key_value_heads", num_heads, maximum=MAX_HEADS),
        head_size=head_size,
        max_context=facts.integer("max_position_embeddings"),
        norm_eps=facts.number("rms_norm_eps", maximum=1.0),
        layers=(LayerSpec(),) * num_layers,
        ropes=(rope,),
        activation=activation_of(facts),
        has_tied_head=facts.boolean("tie_word_embeddings", False),
    )


def head_size_of(facts: Facts, hidden_size: int, num_heads: int) -> int:
    """The head size of a model that does not state it."""
    if not facts.has("head_dim") and hidden_size % num_heads:
        raise ModelLoadError(
            f"{facts.origin}: hidden_size {hidden_size} is not a multiple of "
            f"num_attention_heads {num_heads}, and head_dim is missing."
        )
    return hidden_size // num_heads


def sliding_layers(
    facts: Facts, num_layers: int, is_sliding: Callable[[int], bool]
) -> tuple[bool, ...]:
    """Which layers have a window: `layer_types` when the config has it, else the family's rule."""
    types = facts.texts("layer_types")
    if not types:
        return tuple(is_sliding(layer) for layer in range(num_layers))
    known = {"sliding_attention": True, "full_attention": False}
    for name in types:
        if name not in known:
            raise UnsupportedModelError(
                f"{facts.origin}: the layer type '{name}' is not supported; these are: "
                f"{', '.join(known)}."
            )
    if len(types) != num_layers:
        raise ModelLoadError(
            f"{facts.origin}: layer_types has {len(types)} entries for {num_layers} layers."
        )
    return tuple(known[name] for name in types)


def window_of(facts: Facts) -> int:
    """`sliding_window`; 0 when it is null or absent."""
    return facts.integer("sliding_window") if facts.has("sliding_window") else 0


def alternating_layers(
    sliding: tuple[bool, ...], window: int, sliding_rope: int = 0
) -> tuple[LayerSpec, ...]:
    """Layers of which some have the window, and perhaps a rope of their own."""
    return tuple(
        LayerSpec(window=window, rope=sliding_rope) if slides else LayerSpec() for slides in sliding
    )


def activation_of(facts: Facts) -> Activation:
    """`hidden_activation` or `hidden_act`."""
    key = "hidden_activation" if facts.has("hidden_activation") else "hidden_act"
    name = facts.text(key, "silu")
    if name not in ACTIVATIONS:
        raise UnsupportedModelError(
            f"{facts.origin}: the activation '{name}' is not supported; these are: "
            f"{', '.join(ACTIVATIONS)}."
        )
    return ACTIVATIONS[name]
