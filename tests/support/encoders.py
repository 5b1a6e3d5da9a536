"""Tiny random encoders, made and run by transformers in float32, and as files of both kinds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

VOCAB_SIZE = 200

SIZES: Mapping[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
    "type_vocab_size": 2,
    "pad_token_id": 0,
}

Ids = NDArray[np.int32]


def make_encoder(architecture: str = "BertModel", seed: int = 0, **config: Any) -> Any:
    """A transformers model whose every part matters."""
    import torch
    import transformers

    made = transformers.BertConfig(**{**SIZES, **config})
    made._attn_implementation = "eager"
    model = getattr(transformers, architecture)(made).float().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim == 2:
                weight.copy_(noise * (1.5 / weight.shape[1] ** 0.5))
            else:
                weight.copy_(0.3 * noise + (1.0 if name.endswith("LayerNorm.weight") else 0.0))
    return model


def save_encoder(path: Path, architecture: str = "BertModel", **config: Any) -> Any:
    """Make it and write a model directory, without a tokenizer."""
    model = make_encoder(architecture, **config)
    model.save_pretrained(path)
    return model


def states_of(model: Any, ids: Ids, second_start: int = 0) -> NDArray[np.float32]:
    """[tokens, C]: the last hidden state of one text, or of a pair whose second begins there."""
    import torch

    types = np.zeros(len(ids), np.int64)
    if second_start:
        types[second_start:] = 1
    base = getattr(model, "bert", model)
    with torch.no_grad():
        out = base(
            input_ids=torch.from_numpy(ids.astype(np.int64))[None],
            token_type_ids=torch.from_numpy(types)[None],
        )
    states: NDArray[np.float32] = out.last_hidden_state[0].numpy()
    return states


def scores_of(model: Any, ids: Ids, second_start: int) -> NDArray[np.float32]:
    """The logits of a classifier for one pair."""
    import torch

    types = np.zeros(len(ids), np.int64)
    types[second_start:] = 1
    with torch.no_grad():
        out = model(
            input_ids=torch.from_numpy(ids.astype(np.int64))[None],
            token_type_ids=torch.from_numpy(types)[None],
        )
    logits: NDArray[np.float32] = out.logits[0].numpy()
    return logits


def random_texts(lengths: Sequence[int], seed: int = 1) -> list[Ids]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1, VOCAB_SIZE, n).astype(np.int32) for n in lengths]


def write_encoder_gguf(path: Path, model: Any) -> Path:
    """All weights in F32, as llama.cpp's converter writes a BERT."""
    config = model.config
    arch = gguf.MODEL_ARCH.BERT
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_eps(config.layer_norm_eps)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.CLS)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if "pooler" in name and not hasattr(model, "bert"):
            continue
        short = name.removeprefix("bert.") if "pooler" not in name else name
        found = names.get_name(short, (".weight", ".bias")) or names.get_name(
            name.removeprefix("bert."), (".weight", ".bias")
        )
        if name.startswith("bert.pooler.dense"):
            found = "cls" + name.removeprefix("bert.pooler.dense")
        elif name.startswith("classifier"):
            found = "cls.output" + name.removeprefix("classifier")
        writer.add_tensor(found, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
