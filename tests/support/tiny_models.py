"""A tiny random Llama checkpoint directory, written in milliseconds without torch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

END_OF_TEXT = "<|endoftext|>"
MESSAGE_START = "<|im_start|>"
MESSAGE_END = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, MESSAGE_START, MESSAGE_END)
MERGES = ("t h", "th e", "i n", "Ġ the", "Ġ a", "e r", "o n", "r e", "Ġ w", "l l", "o r", "a n")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
#: 3 special tokens, 256 bytes and the merges.
NUM_TOKENS = len(SPECIAL_TOKENS) + 256 + len(MERGES)


def make_tiny_llama(
    path: Path,
    *,
    seed: int = 0,
    vocab_size: int = 320,
    hidden_size: int = 64,
    intermediate_size: int = 128,
    num_layers: int = 2,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    max_context: int = 512,
    is_tied: bool = False,
    dtype: str = "bf16",
) -> Path:
    """Write config, weights (`dtype` f32, f16 or bf16), tokenizer and chat template; return `path`.

    Token ids 0..2 are `SPECIAL_TOKENS`, then come 256 bytes and a few merges; ids from `NUM_TOKENS`
    on have no text. The end-of-sequence token is `<|im_end|>` (2). The same seed gives the same
    bytes. Weights are scaled so that logits have a spread of about 1 to 4, far from ties.
    """
    if vocab_size < NUM_TOKENS:
        raise ValueError(f"vocab_size must be at least {NUM_TOKENS}")
    path.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "max_position_embeddings": max_context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": is_tied,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "torch_dtype": {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}[dtype],
    }
    _write_json(path / "config.json", config)
    _write_json(path / "generation_config.json", {"bos_token_id": 0, "eos_token_id": [2]})
    write_safetensors(path / "model.safetensors", _weights(config, seed), dtype)
    write_tokenizer(path)
    return path


def write_tokenizer(path: Path) -> None:
    """tokenizer.json (byte-level BPE with a few merges) and tokenizer_config.json (template)."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*SPECIAL_TOKENS, *alphabet, *(merge.replace(" ", "") for merge in MERGES)]
    vocab = {token: index for index, token in enumerate(tokens)}
    merges = [(left, right) for left, right in (merge.split(" ") for merge in MERGES)]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.save(str(path / "tokenizer.json"))
    _write_json(
        path / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": END_OF_TEXT,
            "eos_token": MESSAGE_END,
            "chat_template": CHAT_TEMPLATE,
        },
    )


def write_safetensors(path: Path, tensors: Mapping[str, NDArray[np.float32]], dtype: str) -> None:
    """One safetensors file with every tensor rounded to `dtype` (f32, f16 or bf16)."""
    header: dict[str, Any] = {}
    chunks: list[bytes] = []
    offset = 0
    for name, tensor in tensors.items():
        data = _encode(tensor, dtype)
        end = offset + len(data)
        header[name] = {
            "dtype": dtype.upper(),
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        chunks.append(data)
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(chunks))


def _encode(tensor: NDArray[np.float32], dtype: str) -> bytes:
    if dtype == "bf16":
        bits = np.ascontiguousarray(tensor, dtype=np.float32).view(np.uint32)
        rounded = bits + 0x7FFF + ((bits >> 16) & 1)  # to nearest, ties to even
        return (rounded >> 16).astype(np.uint16).tobytes()
    return tensor.astype({"f32": np.float32, "f16": np.float16}[dtype]).tobytes()


def _weights(config: Mapping[str, Any], seed: int) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    hidden = config["hidden_size"]
    head_size = hidden // config["num_attention_heads"]
    kv_size = config["num_key_value_heads"] * head_size
    intermediate = config["intermediate_size"]

    def matrix(num_outputs: int, num_inputs: int, gain: float = 1.0) -> NDArray[np.float32]:
        values = rng.standard_normal((num_outputs, num_inputs)) * (gain / np.sqrt(num_inputs))
        return values.astype(np.float32)

    def norm() -> NDArray[np.float32]:
        return (1 + 0.1 * rng.standard_normal(hidden)).astype(np.float32)

    tensors = {"model.embed_tokens.weight": matrix(config["vocab_size"], hidden, 2.0)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        tensors |= {
            prefix + "input_layernorm.weight": norm(),
            prefix + "self_attn.q_proj.weight": matrix(hidden, hidden, 1.5),
            prefix + "self_attn.k_proj.weight": matrix(kv_size, hidden, 1.5),
            prefix + "self_attn.v_proj.weight": matrix(kv_size, hidden),
            prefix + "self_attn.o_proj.weight": matrix(hidden, hidden),
            prefix + "post_attention_layernorm.weight": norm(),
            prefix + "mlp.gate_proj.weight": matrix(intermediate, hidden),
            prefix + "mlp.up_proj.weight": matrix(intermediate, hidden),
            prefix + "mlp.down_proj.weight": matrix(hidden, intermediate),
        }
    tensors["model.norm.weight"] = norm()
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = matrix(config["vocab_size"], hidden, 2.0)
    return tensors


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2))
