"""Gemma 2: windows in every other layer, soft caps, norms before and after, scaled embeddings."""

import math
from dataclasses import replace

from msgspec.structs import replace as with_values

from headrace.kernels.values import Activation
from headrace.modeling.facts import Facts
from headrace.modeling.models import config_json, gguf_metadata
from headrace.modeling.models.family import Family
from headrace.modeling.models.gguf_metadata import GGUFHeader
from headrace.modeling.models.names import GGUF, HUGGING_FACE
from headrace.modeling.spec import ModelSpec
from headrace.modeling.weights.parameters import Transform

#: Gemma's safetensors keep w of norms that multiply by 1 + w; GGUF files keep the sum.
CONFIG_NAMES = replace(
    HUGGING_FACE,
    attention_post_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_post_norm="post_feedforward_layernorm",
    norm_transform=Transform.ADD_ONE,
)

CONFIG_DEFAULTS = {
    "vocab_size": 256_000,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}

#: The 27B model scales queries by hidden size / heads; its file does not say so.
LAYERS_OF_27B = 46


def from_config(facts: Facts) -> ModelSpec:
    spec = with_shared_facts(config_json.base_spec(facts, "gemma2"), facts)
    sliding = config_json.sliding_layers(facts, spec.num_layers, lambda layer: layer % 2 == 0)
    window = config_json.window_of(facts)
    return with_values(spec, layers=config_json.alternating_layers(sliding, window))


def with_shared_facts(spec: ModelSpec, facts: Facts) -> ModelSpec:
    """What Gemma 2 and 3 read from config.json alike."""
    has_bias = facts.boolean("attention_bias", False)
    return with_values(
        spec,
        attention_scale=facts.number("query_pre_attn_scalar") ** -0.5,
        attention_soft_cap=facts.number("attn_logit_softcapping", 0.0, allows_zero=True),
        logit_soft_cap=facts.number("final_logit_softcapping", 0.0, allows_zero=True),
        embedding_scale=math.sqrt(spec.hidden_size),
        has_post_norms=True,
        has_qkv_bias=has_bias,
        has_output_bias=has_bias,
    )


def from_gguf(header: GGUFHeader) -> ModelSpec:
    facts = header.facts
    spec = gguf_metadata.base_spec(header, "gemma2")
    sliding = gguf_metadata.sliding_layers(facts, spec.num_layers, 2)
    return with_values(
        spec,
        layers=config_json.alternating_layers(sliding, gguf_metadata.window_of(facts)),
        activation=Activation.GELU_TANH,
        attention_scale=query_scale(spec, LAYERS_OF_27B),
        attention_soft_cap=facts.number("attn_logit_softcapping", 50.0, allows_zero=True),
        logit_soft_cap=facts.number("final_logit_softcapping", 30.0, allows_zero=True),
        embedding_scale=math.sqrt(spec.hidden_size),
        has_post_norms=True,
    )


def query_scale(spec: ModelSpec, layers_of_27b: int) -> float:
    """The file's own scale, or the exception of the largest model; 0 leaves 1 / sqrt(D)."""
    if spec.attention_scale or spec.num_layers != layers_of_27b:
        return spec.attention_scale
    return math.sqrt(spec.num_heads / spec.hidden_size)


FAMILY = Family(
    name="gemma2",
    from_config=from_config,
    from_gguf=from_gguf,
    config_names=CONFIG_NAMES,
    gguf_names=GGUF,
    config_defaults=CONFIG_DEFAULTS,
)
