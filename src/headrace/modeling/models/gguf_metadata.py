"""What all families read from GGUF metadata in the same way."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.core.errors import ModelLoadError, UnsupportedModelError
from headrace.modeling.facts import Facts
from headrace.modeling.models.config_json import MAX_HEADS, MAX_LAYERS, MAX_WIDTH
from headrace.modeling.models.rope_config import check_rope, yarn_attention_factor
from headrace.modeling.spec import LayerSpec, ModelSpec, RopeSpec


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """A GGUF file before its weights are read."""

    facts: Facts
    """Metadata under `<architecture>.`"""
    shapes: Mapping[str, tuple[int, ...]]
    vector: Callable[[str], Any]
    """Reads a small float tensor by name."""

    def factors(self, name: str) -> tuple[float, ...]:
        """Rope divisors stored as a tensor; empty when the file has none."""
        if name not in self.shapes:
            return ()
        return Facts({name: self.vector(name).tolist()}, self.facts.origin).numbers(name)


def base_spec(header: GGUFHeader, family: str) -> ModelSpec:
    """Sizes, one rope, no windows: a plain Llama with this file's numbers."""
    facts = header.facts
    if facts.integer("expert_count", 0, minimum=0) > 0:
        raise UnsupportedModelError(
            f"{facts.origin} is a mixture of experts, which is not supported."
        )
    num_heads = facts.integer("attention.head_count", maximum=MAX_HEADS)
    hidden_size = facts.integer("embedding_length", maximum=MAX_WIDTH)
    head_size = facts.integer("attention.key_length", max(1, hidden_size // num_heads))
    if facts.integer("attention.value_length", head_size) != head_size:
        raise UnsupportedModelError(
            f"{facts.origin}: values of another size than keys are not supported."
        )
    return ModelSpec(
        family=family,
        vocab_size=_vocab_size(header),
        hidden_size=hidden_size,
        intermediate_size=facts.integer("feed_forward_length", maximum=MAX_WIDTH),
        num_heads=num_heads,
        num_kv_heads=facts.integer("attention.head_count_kv", num_heads, maximum=MAX_HEADS),
        head_size=head_size,
        max_context=facts.integer("context_length"),
        norm_eps=facts.number("attention.layer_norm_rms_epsilon", maximum=1.0),
        layers=(LayerSpec(),) * facts.integer("block_count", maximum=MAX_LAYERS),
        ropes=(rope_from_gguf(header, head_size),),
        attention_scale=facts.number("attention.scale", 0.0),
        has_tied_head="output.weight" not in header.shapes,
    )


def rope_from_gguf(header: GGUFHeader, head_size: int) -> RopeSpec:
    """The rope of all layers, or of the global ones."""
    facts = header.facts
    theta = facts.number("rope.freq_base", 10_000.0)
    rotary_size = facts.integer("rope.dimension_count", head_size, maximum=MAX_WIDTH)
    # Files from before `rope.scaling` say only this.
    factor = facts.number("rope.scaling.factor", facts.number("rope.scale_linear", 1.0))
    kind = facts.text("rope.scaling.type", "linear" if factor != 1.0 else "none")
    context = facts.integer("rope.scaling.original_context_length", facts.integer("context_length"))
    long = header.factors("rope_factors_long.weight")
    if long:
        rope = RopeSpec(
            theta=theta,
            rotary_size=rotary_size,
            kind="longrope",
            original_context=context,
            frequency_factors=header.factors("rope_factors_short.weight"),
            long_frequency_factors=long,
            attention_factor=facts.number("rope.scaling.attn_factor", 1.0),
        )
    elif kind in ("none", "linear", "longrope"):
        rope = RopeSpec(
            theta=theta,
            rotary_size=rotary_size,
            kind="linear" if kind == "linear" else "default",
            factor=factor if kind == "linear" else 1.0,
            frequency_factors=header.factors("rope_freqs.weight"),
        )
    elif kind == "yarn":
        scale = yarn_attention_factor(factor) * facts.number("rope.scaling.yarn_attn_factor", 1.0)
        rope = RopeSpec(
            theta=theta,
            rotary_size=rotary_size,
            kind="yarn",
            factor=factor,
            beta_fast=facts.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=facts.number("rope.scaling.yarn_beta_slow", 1.0),
            original_context=context,
            attention_factor=scale,
        )
    else:
        raise UnsupportedModelError(
            f"{facts.origin}: the rope scaling '{kind}' is not supported; these are: "
            "none, linear, yarn, longrope."
        )
    check_rope(rope, head_size, facts.origin)
    return rope


def sliding_layers(facts: Facts, num_layers: int, period: int) -> tuple[bool, ...]:
    """Which layers have a window: one flag a layer in the file, or all but every `period`-th."""
    key = "attention.sliding_window_pattern"
    value = facts.raw(key)
    if isinstance(value, list | tuple):
        if len(value) != num_layers:
            raise ModelLoadError(
                f"{facts.origin}: {key} has {len(value)} entries for {num_layers} layers."
            )
        return tuple(bool(flag) for flag in value)
    period = facts.integer(key, period)
    return tuple((layer + 1) % period != 0 for layer in range(num_layers))


def window_of(facts: Facts) -> int:
    """`attention.sliding_window`; 0 when it is absent."""
    return facts.integer("attention.sliding_window", 0, minimum=0)


def _vocab_size(header: GGUFHeader) -> int:
    """Rows of the embedding table: the metadata key is optional and sometimes wrong."""
    shape = header.shapes.get("token_embd.weight", ())
    if len(shape) != 2:
        raise ModelLoadError(f"{header.facts.origin} has no embedding table (token_embd.weight).")
    return shape[0]
