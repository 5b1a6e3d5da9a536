"""Two servers share names of KV blocks exactly when their keys and values are the same."""

from msgspec.structs import replace

from headrace.modeling.identity import kv_identity
from headrace.modeling.spec import LayerSpec, ModelSpec, RopeSpec

LONGROPE = RopeSpec(
    kind="longrope",
    original_context=128,
    frequency_factors=(1.0,) * 8,
    long_frequency_factors=(2.0,) * 8,
)
SPEC = ModelSpec(
    family="phi3",
    vocab_size=320,
    hidden_size=64,
    intermediate_size=128,
    num_heads=4,
    num_kv_heads=2,
    head_size=16,
    max_context=1024,
    norm_eps=1e-5,
    layers=(LayerSpec(), LayerSpec(window=512)),
    ropes=(LONGROPE,),
)


def at(context: int) -> bytes:
    return kv_identity(SPEC.with_max_context(context))


def test_of_the_context_only_what_it_chose_counts():
    assert at(1024) == at(600), "both with the window, both with the long factors"
    assert at(500) == at(200), "both without the window"
    assert at(128) == at(64), "both with the short factors"
    assert len({at(1024), at(500), at(128)}) == 3


def test_whatever_else_the_model_is_counts():
    others = [
        replace(SPEC, norm_eps=1e-6),
        replace(SPEC, embedding_scale=8.0),
        replace(SPEC, ropes=(replace(LONGROPE, theta=500.0),)),
        replace(SPEC, ropes=(replace(LONGROPE, attention_factor=1.2),)),
        replace(SPEC, layers=(LayerSpec(window=512), LayerSpec())),
    ]
    assert len({kv_identity(spec) for spec in [SPEC, *others]}) == 6
