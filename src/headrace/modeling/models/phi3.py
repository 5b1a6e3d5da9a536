"""Phi-3, 3.5 and 4-mini: joined projections, rotation of part of a head, longrope."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from headrace.modeling.facts import Facts
from headrace.modeling.models import config_json, gguf_metadata
from headrace.modeling.models.family import Family
from headrace.modeling.models.gguf_metadata import GGUFHeader
from headrace.modeling.models.names import GGUF, HUGGING_FACE
from headrace.modeling.spec import LayerSpec, ModelSpec

CONFIG_DEFAULTS: Mapping[str, Any] = {
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
}


def from_config(facts: Facts) -> ModelSpec:
    spec = config_json.base_spec(facts, "phi3")
    window = config_json.window_of(facts)
    return replace(spec, layers=(LayerSpec(window=window),) * spec.num_layers)


def from_gguf(header: GGUFHeader) -> ModelSpec:
    spec = gguf_metadata.base_spec(header, "phi3")
    window = gguf_metadata.window_of(header.facts)
    return replace(spec, layers=(LayerSpec(window=window),) * spec.num_layers)


FAMILY = Family(
    name="phi3",
    from_config=from_config,
    from_gguf=from_gguf,
    config_names=HUGGING_FACE,
    gguf_names=GGUF,
    config_defaults=CONFIG_DEFAULTS,
)
