"""Mistral: Llama with a sliding window in every layer (older releases), or none."""

from msgspec.structs import replace

from headrace.modeling.facts import Facts
from headrace.modeling.models import config_json, llama
from headrace.modeling.models.family import Family
from headrace.modeling.models.names import HUGGING_FACE
from headrace.modeling.spec import LayerSpec, ModelSpec


def from_config(facts: Facts) -> ModelSpec:
    """`sliding_window` null means none; absent, it is 4096."""
    spec = config_json.base_spec(facts, "mistral")
    return replace(
        spec,
        max_context=llama.scaled_context(spec),
        layers=(LayerSpec(window=config_json.window_of(facts)),) * spec.num_layers,
    )


FAMILY = Family(
    name="mistral",
    from_config=from_config,
    from_gguf=llama.from_gguf,
    config_names=HUGGING_FACE,
    gguf_names=llama.GGUF_NAMES,
    config_defaults={
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
    },
)
