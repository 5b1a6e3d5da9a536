"""Gemma 3, text: five windowed layers to one global, a rope for each kind, norms on q and k."""

import math

from msgspec.structs import replace

from headrace.core.errors import UnsupportedModelError
from headrace.kernels.values import Activation
from headrace.modeling.facts import Facts
from headrace.modeling.models import config_json, gemma2, gguf_metadata
from headrace.modeling.models.family import Family
from headrace.modeling.models.gguf_metadata import GGUFHeader
from headrace.modeling.models.names import GGUF
from headrace.modeling.models.rope_config import rope_from_config
from headrace.modeling.spec import ModelSpec, RopeSpec

PERIOD = 6
LOCAL_THETA = 10_000.0
#: As in Gemma 2, the largest model has a query scale of its own.
LAYERS_OF_27B = 62
GLOBAL_ROPE, LOCAL_ROPE = 0, 1


def from_config(facts: Facts) -> ModelSpec:
    """Ropes are global, local; scaling applies to the global one."""
    if facts.boolean("use_bidirectional_attention", False):
        raise UnsupportedModelError(
            f"{facts.origin} attends in both directions (an embedding model), which is not supported."
        )
    spec = gemma2.with_shared_facts(config_json.base_spec(facts, "gemma3"), facts)
    local = rope_from_config(
        facts, spec.head_size, layer_type="sliding_attention", theta_key="rope_local_base_freq"
    )
    period = facts.integer(
        "sliding_window_pattern", facts.integer("_sliding_window_pattern", PERIOD)
    )
    sliding = config_json.sliding_layers(
        facts, spec.num_layers, lambda layer: (layer + 1) % period != 0
    )
    window = config_json.window_of(facts)
    return replace(
        spec,
        ropes=(*spec.ropes, local),
        layers=config_json.alternating_layers(sliding, window, LOCAL_ROPE),
        has_qk_norm=True,
    )


def from_gguf(header: GGUFHeader) -> ModelSpec:
    facts = header.facts
    spec = gguf_metadata.base_spec(header, "gemma3")
    rope = spec.ropes[GLOBAL_ROPE]
    if not facts.has("rope.freq_base"):
        rope = replace(rope, theta=1_000_000.0)
    local = RopeSpec(
        theta=facts.number("rope.freq_base_swa", LOCAL_THETA), rotary_size=rope.rotary_size
    )
    sliding = gguf_metadata.sliding_layers(facts, spec.num_layers, PERIOD)
    window = gguf_metadata.window_of(facts)
    if not window:
        sliding = (False,) * spec.num_layers
    return replace(
        spec,
        ropes=(rope, local),
        layers=config_json.alternating_layers(sliding, window, LOCAL_ROPE),
        activation=Activation.GELU_TANH,
        attention_scale=gemma2.query_scale(spec, LAYERS_OF_27B),
        logit_soft_cap=facts.number("final_logit_softcapping", 0.0, allows_zero=True),
        embedding_scale=math.sqrt(spec.hidden_size),
        has_post_norms=True,
        has_qk_norm=True,
    )


FAMILY = Family(
    name="gemma3",
    from_config=from_config,
    from_gguf=from_gguf,
    config_names=gemma2.CONFIG_NAMES,
    gguf_names=GGUF,
    config_defaults=gemma2.CONFIG_DEFAULTS
    | {
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": LOCAL_THETA,
        "final_logit_softcapping": None,
        "attn_logit_softcapping": None,
    },
)
