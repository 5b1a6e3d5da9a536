"""A tiny random Gemma 3 checkpoint directory: sliding windows, norms on q and k, soft-capped logits."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.support.tiny_models import write_safetensors, write_tokenizer

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_SIZE, LAYERS, VOCAB = 64, 96, 4, 2, 32, 4, 333


def make_tiny_gemma(path: Path, *, window: int = 24, max_context: int = 1024) -> Path:
    """Write config, bf16 weights and tokenizer; return `path`. Every second layer is global."""
    path.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_SIZE,
        "max_position_embeddings": max_context,
        "rms_norm_eps": 1e-6,
        "sliding_window": window,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": HEAD_SIZE,
        "final_logit_softcapping": 20.0,
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    (path / "config.json").write_text(json.dumps(config))
    write_safetensors(path / "model.safetensors", _weights(), "bf16")
    write_tokenizer(path)
    return path


def _weights() -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(3)

    def matrix(outputs: int, inputs: int, gain: float) -> NDArray[np.float32]:
        values = rng.standard_normal((outputs, inputs)) * (gain / np.sqrt(inputs))
        return values.astype(np.float32)

    def norm(size: int = HIDDEN) -> NDArray[np.float32]:
        return (0.2 * rng.standard_normal(size)).astype(np.float32)  # Gemma adds 1

    tensors = {"model.embed_tokens.weight": matrix(VOCAB, HIDDEN, 2.0)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        tensors |= {
            prefix + "input_layernorm.weight": norm(),
            prefix + "self_attn.q_proj.weight": matrix(HEADS * HEAD_SIZE, HIDDEN, 1.5),
            prefix + "self_attn.k_proj.weight": matrix(KV_HEADS * HEAD_SIZE, HIDDEN, 1.5),
            prefix + "self_attn.v_proj.weight": matrix(KV_HEADS * HEAD_SIZE, HIDDEN, 1.0),
            prefix + "self_attn.o_proj.weight": matrix(HIDDEN, HEADS * HEAD_SIZE, 1.0),
            prefix + "self_attn.q_norm.weight": norm(HEAD_SIZE),
            prefix + "self_attn.k_norm.weight": norm(HEAD_SIZE),
            prefix + "post_attention_layernorm.weight": norm(),
            prefix + "pre_feedforward_layernorm.weight": norm(),
            prefix + "mlp.gate_proj.weight": matrix(INTERMEDIATE, HIDDEN, 1.0),
            prefix + "mlp.up_proj.weight": matrix(INTERMEDIATE, HIDDEN, 1.0),
            prefix + "mlp.down_proj.weight": matrix(HIDDEN, INTERMEDIATE, 1.0),
            prefix + "post_feedforward_layernorm.weight": norm(),
        }
    tensors["model.norm.weight"] = norm()
    return tensors
