"""Qwen 3, dense: no bias, but a norm on every query and key head."""

from msgspec.structs import replace

from headrace.modeling.facts import Facts
from headrace.modeling.models import config_json, gguf_metadata, llama, qwen2
from headrace.modeling.models.family import Family
from headrace.modeling.models.gguf_metadata import GGUFHeader
from headrace.modeling.models.names import GGUF, HUGGING_FACE
from headrace.modeling.spec import ModelSpec


def from_config(facts: Facts) -> ModelSpec:
    spec = config_json.base_spec(facts, "qwen3")
    has_bias = facts.boolean("attention_bias", False)
    return replace(
        spec,
        max_context=llama.scaled_context(spec),
        layers=qwen2.upper_windows(facts, spec.num_layers),
        has_qk_norm=True,
        has_qkv_bias=has_bias,
        has_output_bias=has_bias,
    )


def from_gguf(header: GGUFHeader) -> ModelSpec:
    return replace(gguf_metadata.base_spec(header, "qwen3"), has_qk_norm=True)


FAMILY = Family(
    name="qwen3",
    from_config=from_config,
    from_gguf=from_gguf,
    config_names=HUGGING_FACE,
    gguf_names=GGUF,
    config_defaults={
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32_768,
        "sliding_window": 4096,
    },
)
