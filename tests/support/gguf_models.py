"""Write a transformers model as llama.cpp's converter would, with the `gguf` package."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

ARCHITECTURES = {
    "LlamaForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "MistralForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "Qwen2ForCausalLM": gguf.MODEL_ARCH.QWEN2,
    "Qwen3ForCausalLM": gguf.MODEL_ARCH.QWEN3,
    "Gemma2ForCausalLM": gguf.MODEL_ARCH.GEMMA2,
    "Gemma3ForCausalLM": gguf.MODEL_ARCH.GEMMA3,
    "Phi3ForCausalLM": gguf.MODEL_ARCH.PHI3,
}


def write_gguf(path: Path, architecture: str, model: Any) -> Path:
    """All weights in F32. Query and key rows of Llama are reordered, Gemma's norms get their 1."""
    arch = ARCHITECTURES[architecture]
    config = model.config
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    _write_sizes(writer, config)
    _write_rope(writer, arch, config)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    tensors: Mapping[str, Any] = model.state_dict()
    for name, tensor in tensors.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.numpy()
        if arch is gguf.MODEL_ARCH.LLAMA and ".q_proj." in name:
            values = _permute(values, config.num_attention_heads)
        elif arch is gguf.MODEL_ARCH.LLAMA and ".k_proj." in name:
            values = _permute(values, config.num_key_value_heads)
        elif "Gemma" in architecture and name.endswith("norm.weight"):
            values = values + np.float32(1)
        writer.add_tensor(names.get_name(name, (".weight", ".bias")), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_sizes(writer: Any, config: Any) -> None:
    head_size = getattr(config, "head_dim", None)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if head_size:
        writer.add_key_length(head_size)
        writer.add_value_length(head_size)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if getattr(config, "query_pre_attn_scalar", None):
        writer.add_attention_scale(config.query_pre_attn_scalar**-0.5)
    pattern = getattr(config, "_sliding_window_pattern", None)
    if pattern not in (None, 6):
        writer.add_sliding_window_pattern(pattern)
    if getattr(config, "attn_logit_softcapping", None):
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    if getattr(config, "final_logit_softcapping", None):
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def _write_rope(writer: Any, arch: Any, config: Any) -> None:
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    head_size = (
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )
    size = int(head_size * rope.get("partial_rotary_factor", 1.0))
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(size)
    kind = rope["rope_type"]
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    elif kind == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_factors(rope, size))
    elif kind == "longrope":
        original = config.original_max_position_embeddings
        scale = config.max_position_embeddings / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(
            math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0
        )
        writer.add_tensor("rope_factors_long.weight", np.array(rope["long_factor"], np.float32))
        writer.add_tensor("rope_factors_short.weight", np.array(rope["short_factor"], np.float32))


def _permute(values: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Halves of each head become neighbours: element i and i + D/2 to 2i and 2i + 1."""
    heads = values.reshape(num_heads, 2, values.shape[0] // num_heads // 2, *values.shape[1:])
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(values.shape)


def _llama3_factors(rope: Mapping[str, Any], size: int) -> NDArray[np.float32]:
    """What each frequency is divided by."""
    frequencies = rope["rope_theta"] ** (-np.arange(0, size, 2) / size)
    wavelengths = 2 * np.pi / frequencies
    context = rope["original_max_position_embeddings"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = np.clip((context / wavelengths - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)
