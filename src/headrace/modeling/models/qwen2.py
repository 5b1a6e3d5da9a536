"""Qwen 2 and 2.5: Llama with a bias on q, k and v, and windows in the upper layers of a few."""

from msgspec.structs import replace

from headrace.modeling.facts import Facts
from headrace.modeling.models import config_json, gguf_metadata, llama
from headrace.modeling.models.family import Family
from headrace.modeling.models.gguf_metadata import GGUFHeader
from headrace.modeling.models.names import GGUF, HUGGING_FACE
from headrace.modeling.spec import LayerSpec, ModelSpec


def from_config(facts: Facts) -> ModelSpec:
    spec = config_json.base_spec(facts, "qwen2")
    return replace(
        spec,
        max_context=llama.scaled_context(spec),
        layers=upper_windows(facts, spec.num_layers),
        has_qkv_bias=True,
    )


def upper_windows(facts: Facts, num_layers: int) -> tuple[LayerSpec, ...]:
    """A window from layer `max_window_layers` on, and only with `use_sliding_window`."""
    window = config_json.window_of(facts) if facts.boolean("use_sliding_window", False) else 0
    first = facts.integer("max_window_layers", 28, minimum=0)
    sliding = config_json.sliding_layers(facts, num_layers, lambda layer: layer >= first)
    return config_json.alternating_layers(sliding, window)


def from_gguf(header: GGUFHeader) -> ModelSpec:
    return replace(gguf_metadata.base_spec(header, "qwen2"), has_qkv_bias=True)


FAMILY = Family(
    name="qwen2",
    from_config=from_config,
    from_gguf=from_gguf,
    config_names=HUGGING_FACE,
    gguf_names=GGUF,
    config_defaults={
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32_768,
        "sliding_window": 4096,
    },
)
