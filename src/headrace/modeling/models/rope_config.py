"""Rotary embedding as config.json states it: `rope_parameters`, or `rope_theta` and `rope_scaling`."""

import math
from collections.abc import Mapping
from typing import Any

from headrace.core.errors import ModelLoadError, UnsupportedModelError
from headrace.modeling.facts import Facts
from headrace.modeling.spec import RopeSpec

#: config.json's names of the kinds that we have. Dynamic NTK changes nothing within the context.
KINDS = {
    "default": "default",
    "dynamic": "default",
    "linear": "linear",
    "llama3": "llama3",
    "yarn": "yarn",
    "longrope": "longrope",
    "su": "longrope",
}


def rope_from_config(
    facts: Facts, head_size: int, *, layer_type: str = "", theta_key: str = "rope_theta"
) -> RopeSpec:
    """The rope of all layers, or of one layer type where the config has one for each.

    `theta_key` is where older configs keep the base of this layer type.
    """
    parameters = _parameters(facts, layer_type)
    theta = parameters.number("rope_theta", facts.number(theta_key, 10_000.0))
    share = parameters.number(
        "partial_rotary_factor", facts.number("partial_rotary_factor", 1.0), maximum=1.0
    )
    rotary_size = int(head_size * share)
    kind = _kind(parameters)
    if kind == "default":
        rope = RopeSpec(theta=theta, rotary_size=rotary_size)
    elif kind == "longrope":
        rope = _longrope(facts, parameters, theta, rotary_size)
    else:
        rope = _scaled(facts, parameters, kind, theta, rotary_size)
    check_rope(rope, head_size, facts.origin)
    return rope


def check_rope(rope: RopeSpec, head_size: int, origin: str) -> None:
    """Raises ModelLoadError for a rope that no kernel could run."""
    size = rope.rotary_size or head_size
    if size % 2 or not 0 < size <= head_size:
        raise ModelLoadError(
            f"{origin}: {size} rotating elements are not possible with heads of {head_size}."
        )
    for factors in (rope.frequency_factors, rope.long_frequency_factors):
        if factors and len(factors) != size // 2:
            raise ModelLoadError(
                f"{origin}: {len(factors)} rope factors given where {size // 2} are needed."
            )
    if rope.kind == "llama3" and rope.high_freq_factor <= rope.low_freq_factor:
        raise ModelLoadError(f"{origin}: high_freq_factor must be larger than low_freq_factor.")
    if rope.kind == "yarn" and rope.theta <= 1.0:
        raise ModelLoadError(f"{origin}: yarn needs a rope_theta above 1, not {rope.theta:g}.")


def yarn_attention_factor(factor: float) -> float:
    """YaRN's recommended multiplier of cos and sin."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def longrope_attention_factor(factor: float, original_context: int) -> float:
    """LongRoPE's recommended multiplier of cos and sin (arXiv 2402.13753)."""
    if factor <= 1.0 or original_context <= 1:
        return 1.0
    return math.sqrt(1 + math.log(factor) / math.log(original_context))


def _parameters(facts: Facts, layer_type: str) -> Facts:
    """The section that holds; a nested one goes by layer type. Older configs scale one type only."""
    merged: dict[str, Any] = {}
    for key in ("rope_parameters", "rope_scaling"):
        value = facts.raw(key)
        if value is None:
            continue
        if not isinstance(value, Mapping):
            raise ModelLoadError(f"{facts.origin}: {key} must be an object.")
        if any(isinstance(inner, Mapping) for inner in value.values()):
            value = value.get(layer_type or "full_attention") or {}
        elif layer_type == "sliding_attention":
            value = {}
        merged |= value
    return Facts(merged, facts.origin)


def _kind(parameters: Facts) -> str:
    name = parameters.text("rope_type", parameters.text("type", "default"))
    if name not in KINDS:
        raise UnsupportedModelError(
            f"{parameters.origin}: the rope type '{name}' is not supported; these are: "
            f"{', '.join(KINDS)}."
        )
    if parameters.has("short_factor"):  # early Phi-3 files call it yarn
        return "longrope"
    return KINDS[name]


def _original_context(facts: Facts, parameters: Facts) -> int:
    key = "original_max_position_embeddings"
    whole = facts.integer("max_position_embeddings")
    return facts.integer(key, parameters.integer(key, whole))


def _scaled(facts: Facts, parameters: Facts, kind: str, theta: float, rotary_size: int) -> RopeSpec:
    factor = parameters.number("factor")
    attention_factor = 1.0
    if kind == "yarn":
        attention_factor = parameters.number("attention_factor", _yarn_scale(parameters, factor))
    return RopeSpec(
        theta=theta,
        rotary_size=rotary_size,
        kind=kind,
        factor=factor,
        low_freq_factor=parameters.number("low_freq_factor", 1.0),
        high_freq_factor=parameters.number("high_freq_factor", 4.0),
        beta_fast=parameters.number("beta_fast", 32.0),
        beta_slow=parameters.number("beta_slow", 1.0),
        is_truncated=parameters.boolean("truncate", True),
        original_context=_original_context(facts, parameters),
        attention_factor=attention_factor,
    )


def _yarn_scale(parameters: Facts, factor: float) -> float:
    """DeepSeek's variant divides two multipliers; the plain one has neither key."""
    if not (parameters.has("mscale") and parameters.has("mscale_all_dim")):
        return yarn_attention_factor(factor)
    log = yarn_attention_factor(factor) - 1.0
    upper = 1.0 + parameters.number("mscale") * log
    return upper / (1.0 + parameters.number("mscale_all_dim") * log)


def _longrope(facts: Facts, parameters: Facts, theta: float, rotary_size: int) -> RopeSpec:
    original = _original_context(facts, parameters)
    factor = parameters.number("factor", facts.integer("max_position_embeddings") / original)
    short, long = parameters.numbers("short_factor"), parameters.numbers("long_factor")
    if not short or not long:
        raise ModelLoadError(f"{facts.origin}: longrope needs short_factor and long_factor.")
    return RopeSpec(
        theta=theta,
        rotary_size=rotary_size,
        kind="longrope",
        original_context=original,
        frequency_factors=short,
        long_frequency_factors=long,
        attention_factor=parameters.number(
            "attention_factor", longrope_attention_factor(factor, original)
        ),
    )
