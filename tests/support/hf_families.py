"""Tiny random models of every family, made and run by transformers in float32."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

VOCAB_SIZE = 256

SIZES: Mapping[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "partial_rotary_factor": 0.5,
    "short_factor": [1.0, 1.1, 1.25, 1.5],
    "long_factor": [1.0, 2.0, 4.0, 8.0],
}


@dataclass(frozen=True)
class Case:
    """One model: its transformers classes, and what its config adds to `SIZES`."""

    name: str
    architecture: str
    config_class: str
    config: Mapping[str, Any] = field(default_factory=dict)


def _case(name: str, prefix: str, **config: Any) -> Case:
    text = "Text" if prefix == "Gemma3" else ""
    return Case(name, f"{prefix}ForCausalLM", f"{prefix}{text}Config", config)


CASES: Sequence[Case] = (
    _case("llama", "Llama"),
    _case("llama-tied", "Llama", tie_word_embeddings=True, num_key_value_heads=1),
    _case("llama-biases", "Llama", attention_bias=True, mlp_bias=True),
    _case("llama3-rope", "Llama", rope_parameters=LLAMA3_ROPE),
    _case(
        "llama-linear-rope",
        "Llama",
        rope_parameters={"rope_type": "linear", "rope_theta": 5e5, "factor": 3.0},
    ),
    _case("mistral-window", "Mistral", sliding_window=9, head_dim=32),
    _case("mistral-full", "Mistral", sliding_window=None),
    _case("qwen2", "Qwen2", tie_word_embeddings=True),
    _case("qwen2-yarn", "Qwen2", rope_parameters=YARN_ROPE),
    _case(
        "qwen2-upper-windows",
        "Qwen2",
        use_sliding_window=True,
        sliding_window=8,
        max_window_layers=1,
        num_hidden_layers=3,
    ),
    _case("qwen3", "Qwen3", head_dim=32),
    _case(
        "gemma2",
        "Gemma2",
        head_dim=32,
        sliding_window=8,
        num_hidden_layers=3,
        query_pre_attn_scalar=24,
        final_logit_softcapping=5.0,
        attn_logit_softcapping=3.0,
        tie_word_embeddings=True,
    ),
    _case(
        "gemma3",
        "Gemma3",
        head_dim=32,
        sliding_window=8,
        num_hidden_layers=7,
        query_pre_attn_scalar=32,
        tie_word_embeddings=True,
    ),
    _case(
        "gemma3-scaled",
        "Gemma3",
        head_dim=32,
        sliding_window=11,
        num_hidden_layers=4,
        sliding_window_pattern=2,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
    _case(
        "phi3",
        "Phi3",
        sliding_window=13,
        original_max_position_embeddings=256,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": 0.75,
        },
        hidden_size=128,
    ),
    _case("phi3-longrope", "Phi3", original_max_position_embeddings=16, rope_parameters=LONGROPE),
)


def make_model(case: Case, seed: int = 0) -> Any:
    """A transformers model in float32, with weights that make every part of it matter."""
    import torch
    import transformers

    config = getattr(transformers, case.config_class)(**{**SIZES, **case.config})
    config._attn_implementation = "eager"  # the only one that has soft caps
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = getattr(transformers, case.architecture)(config).float().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim == 2:
                weight.copy_(noise * (1.5 / weight.shape[1] ** 0.5))
            elif name.endswith("norm.weight"):
                centre = 0.0 if "Gemma" in case.architecture else 1.0
                weight.copy_(centre + 0.2 * noise)
            else:
                weight.copy_(0.3 * noise)
    return model


def save_model(case: Case, path: Path, seed: int = 0, *, is_bf16: bool = False) -> Any:
    """Make it, write config.json and safetensors to `path`, return the model in float32.

    With `is_bf16` its weights are rounded to bf16 first, and stored so; nothing else is rounded.
    """
    import torch

    model = make_model(case, seed)
    if is_bf16:
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(weight.bfloat16().float())
    dtype = torch.bfloat16 if is_bf16 else torch.float32
    state = {name: weight.to(dtype) for name, weight in model.state_dict().items()}
    model.save_pretrained(path, state_dict=state)
    return model


def model_logits(model: Any, sequences: Sequence[NDArray[np.int32]]) -> list[NDArray[np.float32]]:
    """[len(sequence), V] for each sequence, each run alone."""
    import torch

    with torch.no_grad():
        return [
            model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0].numpy()
            for ids in sequences
        ]


def random_sequences(lengths: Sequence[int], seed: int = 1) -> list[NDArray[np.int32]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCAB_SIZE, n).astype(np.int32) for n in lengths]
