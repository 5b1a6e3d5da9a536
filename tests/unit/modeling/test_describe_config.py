"""config.json in all its ages, and what is refused with a sentence."""

import math
import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.fake_checkpoint import FakeCheckpoint, hugging_face_shapes

from headrace.core.errors import ModelLoadError, UnsupportedModelError
from headrace.modeling.layers.rope import inverse_frequencies
from headrace.modeling.registry import CONFIG_FAMILIES, describe
from headrace.modeling.spec import ModelSpec, RopeSpec

BASE: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 50_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
SHAPES = hugging_face_shapes(BASE)


def without(*keys: str, **changes: Any) -> dict[str, Any]:
    return {key: value for key, value in BASE.items() if key not in keys} | changes


def spec_of(config: Mapping[str, Any], shapes: Mapping[str, Any] | None = None) -> ModelSpec:
    stated = {**BASE, **config}
    shapes = hugging_face_shapes(stated) if shapes is None else shapes
    return describe(FakeCheckpoint("safetensors", shapes, config=config))[0]  # type: ignore[arg-type]


def refusal(
    config: Mapping[str, Any],
    shapes: Mapping[str, Any] = SHAPES,
    error: type[ModelLoadError] = ModelLoadError,
) -> str:
    with pytest.raises(error) as caught:
        describe(FakeCheckpoint("safetensors", shapes, config=config))  # type: ignore[arg-type]
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message


# ---- the same facts, written in different ways -----------------------------------------------------


@pytest.mark.parametrize(
    "scaling",
    [
        {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3"},
        {"factor": 2.0, "type": "linear"},
        {"factor": 4.0, "type": "yarn", "original_max_position_embeddings": 128},
        {"factor": 4.0, "rope_type": "yarn", "attention_factor": 1.25, "beta_fast": 16.0},
    ],
    ids=lambda scaling: str(scaling.get("type", scaling.get("rope_type"))),
)
def test_rope_scaling_and_rope_parameters_say_the_same(scaling: Mapping[str, Any]) -> None:
    old = without(rope_scaling=scaling)
    new = without("rope_theta", rope_parameters={**scaling, "rope_theta": 50_000.0})
    spec = spec_of(old)
    assert spec == spec_of(new)
    assert spec.ropes[0].theta == 50_000.0
    assert spec.ropes[0].factor == scaling["factor"]


def test_gemma3_ropes_in_both_layouts() -> None:
    gemma = {"architectures": ["Gemma3ForCausalLM"], "head_dim": 16, "sliding_window": 32}
    gemma["hidden_activation"] = "gelu_pytorch_tanh"
    old = without(
        rope_theta=1e6,
        rope_local_base_freq=20_000.0,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        **gemma,
    )
    new = without(
        "rope_theta",
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 20_000.0},
        },
        **gemma,
    )
    spec = spec_of(old)
    assert spec == spec_of(new)
    assert [(rope.kind, rope.theta) for rope in spec.ropes] == [("linear", 1e6), ("default", 2e4)]


def test_early_phi3_calls_longrope_su_or_yarn() -> None:
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    shapes = hugging_face_shapes(without(architectures=["Phi3ForCausalLM"]))
    specs = [
        spec_of(
            without(
                architectures=["Phi3ForCausalLM"],
                original_max_position_embeddings=128,
                rope_scaling={"type": name, **factors},
            ),
            shapes,
        )
        for name in ("su", "yarn", "longrope")
    ]
    assert specs[0] == specs[1] == specs[2]
    assert specs[0].ropes[0].kind == "longrope"


def test_layer_types_win_over_the_pattern() -> None:
    config = without(
        architectures=["Gemma2ForCausalLM"],
        sliding_window=32,
        head_dim=16,
        layer_types=["full_attention", "sliding_attention"],
    )
    assert [layer.window for layer in spec_of(config).layers] == [0, 32]


@pytest.mark.parametrize(("pattern", "windows"), [(2, [32, 0, 32, 0]), (3, [32, 32, 0, 32])])
def test_gemma3_pattern(pattern: int, windows: list[int]) -> None:
    config = without(
        architectures=["Gemma3ForCausalLM"],
        sliding_window=32,
        head_dim=16,
        num_hidden_layers=4,
        sliding_window_pattern=pattern,
    )
    assert [layer.window for layer in spec_of(config).layers] == windows


def test_absent_head_counts_and_sizes() -> None:
    config = without("num_key_value_heads", "rms_norm_eps", "rope_theta")
    spec = spec_of(config, hugging_face_shapes({**BASE, "num_key_value_heads": 4}))
    assert (spec.num_kv_heads, spec.head_size, spec.norm_eps) == (4, 16, 1e-6)
    assert spec.ropes == (RopeSpec(theta=10_000.0, rotary_size=16),)


def test_null_is_absent() -> None:
    config = without(num_key_value_heads=None, head_dim=None, rope_scaling=None)
    shapes = hugging_face_shapes({**BASE, "num_key_value_heads": 4})
    assert spec_of(config, shapes).num_kv_heads == 4


def test_mistral_window_absent_is_4096_and_null_is_none() -> None:
    config = without(architectures=["MistralForCausalLM"], max_position_embeddings=8192)
    assert spec_of(config).layers[0].window == 4096
    assert spec_of({**config, "sliding_window": None}).layers[0].window == 0


def test_stretched_contexts() -> None:
    linear = without(rope_scaling={"type": "linear", "factor": 4.0})
    assert spec_of(linear).max_context == 2048
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    assert spec_of(without(rope_scaling=yarn)).max_context == 2048
    # transformers' own habit: the stretched context is stated already
    assert spec_of(without(rope_scaling=yarn, max_position_embeddings=2048)).max_context == 2048


def test_tied_models_have_no_head_parameter() -> None:
    config = without(tie_word_embeddings=True)
    checkpoint = FakeCheckpoint("safetensors", SHAPES, config=config)
    spec, parameters = describe(checkpoint)  # type: ignore[arg-type]
    assert spec.has_tied_head
    assert "head" not in {parameter.name for parameter in parameters}


# ---- refusals --------------------------------------------------------------------------------------


def test_unknown_architecture_is_named_and_all_known_ones_listed() -> None:
    message = refusal(without(architectures=["BambaForCausalLM"]), error=UnsupportedModelError)
    assert "BambaForCausalLM" in message
    for architecture in CONFIG_FAMILIES:
        assert architecture in message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": []}, "names no architecture"),
        ({"architectures": "LlamaForCausalLM"}, "architectures must be a list"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
        ({"hidden_size": -1}, "hidden_size must be an integer from 1"),
        ({"hidden_size": "64"}, "hidden_size must be an integer"),
        ({"hidden_size": 1 << 40}, "hidden_size must be an integer"),
        ({"num_attention_heads": True}, "num_attention_heads must be an integer"),
        ({"num_attention_heads": 5}, "not a multiple"),
        ({"num_key_value_heads": 3}, "cannot share 3 KV heads"),
        ({"head_dim": 7}, "cannot be rotated|rotating elements"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a number"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be a number above 0"),
        ({"rope_theta": 0}, "rope_theta must be a number above 0"),
        ({"rope_theta": 1e-300}, "frequencies that no model has"),
        ({"rope_scaling": {"type": "linear", "factor": 1e-320}}, "frequencies that no model has"),
        ({"rope_scaling": [1]}, "rope_scaling must be an object"),
        ({"rope_scaling": {"type": "mystery"}}, "rope type 'mystery' is not supported"),
        ({"rope_scaling": {"type": "linear"}}, "factor must be a number"),
        ({"rope_scaling": {"type": "longrope"}}, "short_factor and long_factor"),
        ({"partial_rotary_factor": 0.1}, "rotating elements"),
        ({"hidden_act": "relu"}, "activation 'relu' is not supported"),
        ({"num_hidden_layers": 3}, "lacks the tensor 'model.layers.2."),
        ({"vocab_size": 129}, "embed_tokens.weight' has shape"),
        ({"intermediate_size": 97}, "has shape"),
        ({"attention_bias": True}, "lacks the tensor .*bias"),
        ({"text_config": 3}, "text_config must be an object"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], words: str) -> None:
    assert re.search(words, refusal(without(**changes)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layer_types": ["full_attention"]}, "1 entries for 2 layers"),
        ({"layer_types": ["full_attention", "mamba"]}, "layer type 'mamba'"),
        ({"use_bidirectional_attention": True}, "both directions"),
    ],
)
def test_gemma3_variants_are_refused(changes: dict[str, Any], words: str) -> None:
    config = without(architectures=["Gemma3ForCausalLM"], head_dim=16, **changes)
    assert words in refusal(config, hugging_face_shapes(config))


def test_a_layer_tensor_that_nothing_reads_is_refused() -> None:
    shapes = {**SHAPES, "model.layers.1.self_attn.q_norm.weight": (16,)}
    message = refusal(BASE, shapes, UnsupportedModelError)
    assert "model.layers.1.self_attn.q_norm.weight" in message


def test_harmless_extras_are_not() -> None:
    extra = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": (8,),
        "model.layers.2.mtp.weight": (8, 8),
        "vision.layers.0.weight": (1,),
    }
    assert spec_of(BASE, {**SHAPES, **extra}).num_layers == 2


garbage = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.one_of(st.integers(), st.floats(), st.text(max_size=3), st.just([])), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
    st.dictionaries(
        st.sampled_from(
            ["rope_type", "type", "factor", "rope_theta", "short_factor", "long_factor", "mscale"]
        ),
        st.one_of(st.sampled_from(["yarn", "linear", "longrope", "llama3"]), st.floats()),
    ),
)


MORE_KEYS = [
    "head_dim",
    "rope_scaling",
    "rope_parameters",
    "sliding_window",
    "layer_types",
    "text_config",
    "quantization_config",
    "sliding_window_pattern",
    "attention_bias",
]


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(CONFIG_FAMILIES)),
    st.dictionaries(
        st.sampled_from([*BASE, *MORE_KEYS]),
        garbage,
        max_size=4,
    ),
)
def test_garbage_never_costs_more_than_a_sentence(
    architecture: str, changes: dict[str, Any]
) -> None:
    config = {**BASE, "architectures": [architecture], **changes}
    checkpoint = FakeCheckpoint("safetensors", SHAPES, config=config)
    try:
        spec, _ = describe(checkpoint)  # type: ignore[arg-type]
    except ModelLoadError:
        return  # `refusal` above looks at the sentences
    for rope in spec.ropes:
        frequencies = inverse_frequencies(rope, spec.head_size, spec.max_context)
        assert all(math.isfinite(frequency) for frequency in frequencies)
        assert math.isfinite(rope.attention_factor)
