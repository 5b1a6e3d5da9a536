"""Where each parameter of the decoder lies in a checkpoint: tables of tensor names."""

from dataclasses import dataclass

from headrace.modeling.weights.parameters import Transform


@dataclass(frozen=True, slots=True)
class TensorNames:
    """Names without `.weight` or `.bias`; those of a layer follow `layer`, which holds its number.

    `qkv` and `gate_up` name the joined tensor of files that have one. `prefixes` are the places where
    a text model may lie inside a larger checkpoint, the usual one first; all names but `heads`, which
    are whole, come after the prefix.
    """

    embed: str
    norm: str
    heads: tuple[str, ...]
    layer: str
    attention_norm: str
    q: str
    k: str
    v: str
    qkv: str
    output: str
    mlp_norm: str
    gate: str
    up: str
    gate_up: str
    down: str
    q_norm: str
    k_norm: str
    attention_post_norm: str
    mlp_post_norm: str
    prefixes: tuple[str, ...]
    norm_transform: Transform = Transform.NONE
    query_key_transform: Transform = Transform.NONE
    ignored: tuple[str, ...] = ()
    """Tensors of a layer that carry no weights of their own."""


HUGGING_FACE = TensorNames(
    embed="embed_tokens",
    norm="norm",
    heads=("lm_head", "language_model.lm_head"),
    layer="layers.{}.",
    attention_norm="input_layernorm",
    q="self_attn.q_proj",
    k="self_attn.k_proj",
    v="self_attn.v_proj",
    qkv="self_attn.qkv_proj",
    output="self_attn.o_proj",
    mlp_norm="post_attention_layernorm",
    gate="mlp.gate_proj",
    up="mlp.up_proj",
    gate_up="mlp.gate_up_proj",
    down="mlp.down_proj",
    q_norm="self_attn.q_norm",
    k_norm="self_attn.k_norm",
    attention_post_norm="",
    mlp_post_norm="",
    prefixes=("model.", "", "language_model.model.", "model.language_model."),
    ignored=("self_attn.rotary_emb.inv_freq",),
)

GGUF = TensorNames(
    embed="token_embd",
    norm="output_norm",
    heads=("output",),
    layer="blk.{}.",
    attention_norm="attn_norm",
    q="attn_q",
    k="attn_k",
    v="attn_v",
    qkv="attn_qkv",
    output="attn_output",
    mlp_norm="ffn_norm",
    gate="ffn_gate",
    up="ffn_up",
    gate_up="ffn_up",
    down="ffn_down",
    q_norm="attn_q_norm",
    k_norm="attn_k_norm",
    attention_post_norm="post_attention_norm",
    mlp_post_norm="post_ffw_norm",
    prefixes=("",),
    ignored=("attn_rot_embd.weight",),
)
