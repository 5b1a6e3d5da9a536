"""BERT and MiniLM: encoders for embeddings, and with a classification head for scores of pairs."""

from functools import partial

from headrace.core.errors import UnsupportedModelError
from headrace.kernels.values import Activation
from headrace.modeling.facts import Facts
from headrace.modeling.models.config_json import (
    MAX_HEADS,
    MAX_LAYERS,
    MAX_VOCAB,
    MAX_WIDTH,
    activation_of,
    head_size_of,
)
from headrace.modeling.models.encoder_parameters import EncoderNames
from headrace.modeling.models.family import Family
from headrace.modeling.models.gguf_metadata import GGUFHeader
from headrace.modeling.spec import EncoderSpec, LayerSpec, ModelSpec, RopeSpec

MAX_LABELS = 1 << 16
MAX_TOKEN_TYPES = 16

#: Learned positions: heads are not turned. Two elements are the least that a rope can have.
STILL = RopeSpec(kind="none", rotary_size=2)


def from_config(facts: Facts, *, is_classifier: bool = False) -> ModelSpec:
    """Absolute positions and full attention; Hugging Face's defaults are in `config_defaults`."""
    kind = facts.text("position_embedding_type", "absolute")
    if kind != "absolute" or facts.boolean("is_decoder", False):
        what = "a decoder" if kind == "absolute" else f"positions of the kind '{kind[:40]}'"
        raise UnsupportedModelError(f"{facts.origin}: a BERT with {what} is not supported.")
    num_heads = facts.integer("num_attention_heads", maximum=MAX_HEADS)
    hidden_size = facts.integer("hidden_size", maximum=MAX_WIDTH)
    num_positions = facts.integer("max_position_embeddings", maximum=MAX_WIDTH)
    return ModelSpec(
        family="bert",
        vocab_size=facts.integer("vocab_size", maximum=MAX_VOCAB),
        hidden_size=hidden_size,
        intermediate_size=facts.integer("intermediate_size", maximum=MAX_WIDTH),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_size=head_size_of(facts, hidden_size, num_heads),
        max_context=num_positions,
        norm_eps=facts.number("layer_norm_eps", maximum=1.0),
        layers=(LayerSpec(),) * facts.integer("num_hidden_layers", maximum=MAX_LAYERS),
        ropes=(STILL,),
        activation=activation_of(facts),
        encoder=EncoderSpec(
            num_positions=num_positions,
            num_token_types=facts.integer("type_vocab_size", maximum=MAX_TOKEN_TYPES),
            num_labels=num_labels(facts) if is_classifier else 0,
        ),
    )


def num_labels(facts: Facts) -> int:
    """As many as `id2label` names; a config without it has Hugging Face's two."""
    labels = facts.raw("id2label")
    if isinstance(labels, dict) and labels:
        return min(len(labels), MAX_LABELS)
    return facts.integer("num_labels", 2, maximum=MAX_LABELS)


def from_gguf(header: GGUFHeader) -> ModelSpec:
    """Sizes of vocabulary, token types and labels are seen, not stated."""
    facts, shapes = header.facts, header.shapes
    num_heads = facts.integer("attention.head_count", maximum=MAX_HEADS)
    hidden_size = facts.integer("embedding_length", maximum=MAX_WIDTH)

    num_positions = facts.integer("context_length", maximum=MAX_WIDTH)

    def rows(name: str) -> int:
        return (shapes.get(name) or (0,))[0]

    return ModelSpec(
        family="bert",
        vocab_size=max(1, rows("token_embd.weight")),
        hidden_size=hidden_size,
        intermediate_size=facts.integer("feed_forward_length", maximum=MAX_WIDTH),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_size=max(1, hidden_size // num_heads),
        max_context=num_positions,
        norm_eps=facts.number("attention.layer_norm_epsilon", maximum=1.0),
        layers=(LayerSpec(),) * facts.integer("block_count", maximum=MAX_LAYERS),
        ropes=(STILL,),
        activation=Activation.GELU,
        encoder=EncoderSpec(
            num_positions=num_positions,
            num_token_types=max(1, rows("token_types.weight")),
            num_labels=rows("cls.output.weight"),
        ),
    )


NAMES = EncoderNames(
    embed="embeddings.word_embeddings",
    positions="embeddings.position_embeddings",
    token_types="embeddings.token_type_embeddings",
    embed_norm="embeddings.LayerNorm",
    layer="encoder.layer.{}.",
    q="attention.self.query",
    k="attention.self.key",
    v="attention.self.value",
    output="attention.output.dense",
    attention_norm="attention.output.LayerNorm",
    up="intermediate.dense",
    down="output.dense",
    mlp_norm="output.LayerNorm",
    pooler="bert.pooler.dense",
    classifier="classifier",
    prefixes=("", "bert."),
)

GGUF_NAMES = EncoderNames(
    embed="token_embd",
    positions="position_embd",
    token_types="token_types",
    embed_norm="token_embd_norm",
    layer="blk.{}.",
    q="attn_q",
    k="attn_k",
    v="attn_v",
    output="attn_output",
    attention_norm="attn_output_norm",
    up="ffn_up",
    down="ffn_down",
    mlp_norm="layer_output_norm",
    pooler="cls",
    classifier="cls.output",
    prefixes=("",),
)

_DEFAULTS = {
    "vocab_size": 30_522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}

FAMILY = Family(
    name="bert",
    from_config=from_config,
    from_gguf=from_gguf,
    config_names=NAMES,
    gguf_names=GGUF_NAMES,
    config_defaults=_DEFAULTS,
)

CLASSIFIER = Family(
    name="bert",
    from_config=partial(from_config, is_classifier=True),
    from_gguf=from_gguf,
    config_names=NAMES,
    gguf_names=GGUF_NAMES,
    config_defaults=_DEFAULTS,
)
