"""Configs of real models: the facts are understood, the weights counted, the program recorded."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.support import published_configs as published
from tests.support.fake_checkpoint import (
    FakeCheckpoint,
    hugging_face_shapes,
    num_weights,
    shape_parameters,
)
from tests.support.model_run import kv_layout

from headrace.kernels.formats import WeightFormat
from headrace.kernels.shapes import ShapeBackend, ShapeProgram
from headrace.kernels.values import DType, StepLimits
from headrace.modeling.decoder import Decoder
from headrace.modeling.registry import describe
from headrace.modeling.spec import KVGroup, ModelSpec

#: With the number of weights that the model's page states.
MODELS = {
    "llama-3.2-1b": (published.LLAMA_3_2_1B, 1_235_814_400),
    "smollm2-135m": (published.SMOLLM2_135M, 134_515_008),
    "mistral-7b-v0.1": (published.MISTRAL_7B_V0_1, 7_241_732_096),
    "qwen2.5-0.5b": (published.QWEN2_5_0_5B, 494_032_768),
    "qwen3-0.6b": (published.QWEN3_0_6B, 596_049_920),
    "gemma-2-2b": (published.GEMMA_2_2B, 2_614_341_888),
    "gemma-3-1b": (published.GEMMA_3_1B, 999_885_952),
    "phi-3-mini-4k": (published.PHI_3_MINI_4K, 3_821_079_552),
    "phi-4-mini": (published.PHI_4_MINI, 3_836_021_760),
}


def fake(config: Mapping[str, Any]) -> FakeCheckpoint:
    return FakeCheckpoint("safetensors", hugging_face_shapes(config), config=config)


def spec_of(config: Mapping[str, Any]) -> ModelSpec:
    return describe(fake(config))[0]  # type: ignore[arg-type]


@pytest.mark.parametrize(("config", "count"), MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize("weight_format", [WeightFormat.W4G32, WeightFormat.BF16])
def test_full_size_models_are_recorded(
    config: Mapping[str, Any], count: int, weight_format: WeightFormat
) -> None:
    checkpoint = fake(config)
    spec, parameters = describe(checkpoint)  # type: ignore[arg-type]
    assert num_weights(checkpoint, parameters) == count
    backend = ShapeBackend()
    layout = kv_layout(spec, max_tokens=512, num_sequences=2, dtype=DType.F16)
    recorded = Decoder(spec, shape_parameters(checkpoint, parameters, weight_format)).record(
        backend, StepLimits(512, 8), backend.create_kv_cache(layout)
    )
    assert isinstance(recorded.program, ShapeProgram)
    names = [op.name for op in recorded.program.ops]
    assert names.count("attention") == names.count("rotate_and_store") == spec.num_layers
    assert names.count("linear") == 4 * spec.num_layers + 1
    assert names.count("convert") == 0  # norms write what the linears read
    assert names.count("rms_norm") == 2 * spec.num_layers + 1
    assert names.count("rms_norm_add") == (2 * spec.num_layers if spec.has_post_norms else 0)
    assert recorded.logits is not None
    assert recorded.logits.width == spec.vocab_size
    layers = [op.arguments["layer"] for op in recorded.program.ops if op.name == "attention"]
    assert layers == list(range(spec.num_layers))
    # One layer's buffers serve all layers: the largest arena is that of logits and MLP.
    assert recorded.program.arena_bytes < 512 * 4 * 24 * spec.hidden_size + 8 * 4 * spec.vocab_size


def test_llama3_scaling_and_context() -> None:
    spec = spec_of(published.LLAMA_3_2_1B)
    rope = spec.ropes[0]
    assert (rope.kind, rope.factor, rope.original_context) == ("llama3", 32.0, 8192)
    assert rope.theta == 500_000.0
    assert spec.max_context == 131_072
    assert spec.kv_groups() == (KVGroup(0, tuple(range(16))),)


def test_mistral_has_one_windowed_group() -> None:
    assert spec_of(published.MISTRAL_7B_V0_1).kv_groups() == (KVGroup(4096, tuple(range(32))),)


def test_qwen_ignores_a_window_that_is_switched_off() -> None:
    spec = spec_of(published.QWEN2_5_0_5B)
    assert [group.window for group in spec.kv_groups()] == [0]
    assert spec.has_qkv_bias
    switched = spec_of({**published.QWEN2_5_0_5B, "use_sliding_window": True, "sliding_window": 99})
    assert switched.kv_groups() == (
        KVGroup(0, tuple(range(21))),
        KVGroup(99, tuple(range(21, 24))),
    )


def test_gemma2_alternates_and_caps() -> None:
    spec = spec_of(published.GEMMA_2_2B)
    assert spec.kv_groups() == (
        KVGroup(4096, tuple(range(0, 26, 2))),
        KVGroup(0, tuple(range(1, 26, 2))),
    )
    assert spec.layer_groups() == (0, 1) * 13
    assert (spec.attention_soft_cap, spec.logit_soft_cap) == (50.0, 30.0)
    assert spec.embedding_scale == 48.0
    assert spec.attention_scale == 1 / 16
    assert spec.has_tied_head


def test_gemma3_has_a_rope_for_each_kind_of_layer() -> None:
    spec = spec_of(published.GEMMA_3_1B)
    windowed, whole = spec.kv_groups()
    assert windowed.window == 512
    assert (whole.window, whole.layers) == (0, (5, 11, 17, 23))
    assert {spec.ropes[spec.layers[i].rope].theta for i in whole.layers} == {1e6}
    assert {spec.ropes[spec.layers[i].rope].theta for i in windowed.layers} == {1e4}
    assert spec.attention_soft_cap == spec.logit_soft_cap == 0.0


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_gemma3_inside_a_multimodal_checkpoint(prefix: str) -> None:
    stated = {
        "architectures": ["Gemma3ForCausalLM"],
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
    }
    shapes = hugging_face_shapes({**published.GEMMA_3_4B["text_config"], **stated}, prefix)
    shapes["vision_tower.vision_model.embeddings.patch_embedding.weight"] = (1152, 3, 14, 14)
    checkpoint = FakeCheckpoint("safetensors", shapes, config=published.GEMMA_3_4B)
    spec, parameters = describe(checkpoint)  # type: ignore[arg-type]
    assert (spec.num_heads, spec.num_kv_heads, spec.max_context) == (8, 4, 131_072)
    whole, local = spec.ropes
    assert (whole.kind, whole.factor, whole.theta) == ("linear", 8.0, 1e6)
    assert (local.kind, local.theta) == ("default", 1e4)
    assert parameters[0].sources[0].name == f"{prefix}embed_tokens.weight"


def test_phi_rotates_a_part_and_picks_factors_by_context() -> None:
    spec = spec_of(published.PHI_4_MINI)
    rope = spec.ropes[0]
    assert (rope.kind, rope.rotary_size, rope.original_context) == ("longrope", 96, 4096)
    assert rope.attention_factor == pytest.approx(1.1902380714238083)
    assert [group.window for group in spec.kv_groups()] == [0]  # wider than the context


def test_phi3_window() -> None:
    assert spec_of(published.PHI_3_MINI_4K).kv_groups()[0].window == 2047


def test_a_shorter_context_drops_windows_that_no_longer_bite() -> None:
    spec = spec_of(published.GEMMA_3_1B).with_max_context(400)
    assert spec.max_context == 400
    assert [group.window for group in spec.kv_groups()] == [0]
