"""Llama 1 to 3.x and everything built like it (SmolLM2, TinyLlama, Yi, ...)."""

from dataclasses import replace

from msgspec.structs import replace as with_values

from headrace.modeling.facts import Facts
from headrace.modeling.models import config_json, gguf_metadata
from headrace.modeling.models.family import Family
from headrace.modeling.models.gguf_metadata import GGUFHeader
from headrace.modeling.models.names import GGUF, HUGGING_FACE
from headrace.modeling.spec import LayerSpec, ModelSpec
from headrace.modeling.weights.parameters import Transform


def from_config(facts: Facts) -> ModelSpec:
    """`attention_bias` puts a bias on q, k, v and the output, `mlp_bias` on the other three."""
    spec = config_json.base_spec(facts, "llama")
    has_bias = facts.boolean("attention_bias", False)
    return with_values(
        spec,
        max_context=scaled_context(spec),
        has_qkv_bias=has_bias,
        has_output_bias=has_bias,
        has_mlp_bias=facts.boolean("mlp_bias", False),
    )


def scaled_context(spec: ModelSpec) -> int:
    """Linear and yarn configs often state the context before it is stretched."""
    rope = spec.ropes[0]
    if rope.kind == "linear":
        return int(spec.max_context * rope.factor)
    if rope.kind == "yarn":
        return max(spec.max_context, int(rope.original_context * rope.factor))
    return spec.max_context


def from_gguf(header: GGUFHeader) -> ModelSpec:
    """Mistral files say `llama` too; newer ones carry their window. Biases are seen, not stated."""
    spec = gguf_metadata.base_spec(header, "llama")
    window = gguf_metadata.window_of(header.facts)
    return with_values(
        spec,
        layers=(LayerSpec(window=window),) * spec.num_layers,
        has_qkv_bias="blk.0.attn_q.bias" in header.shapes,
        has_output_bias="blk.0.attn_output.bias" in header.shapes,
        has_mlp_bias="blk.0.ffn_down.bias" in header.shapes,
    )


#: llama.cpp's converter reorders query and key rows for a rotation of neighbouring elements.
GGUF_NAMES = replace(GGUF, query_key_transform=Transform.UNPERMUTE)

FAMILY = Family(
    name="llama",
    from_config=from_config,
    from_gguf=from_gguf,
    config_names=HUGGING_FACE,
    gguf_names=GGUF_NAMES,
    config_defaults={"rms_norm_eps": 1e-6, "max_position_embeddings": 2048},
)
