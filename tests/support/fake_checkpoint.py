"""A checkpoint that has names, shapes and facts, but no weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.kernels.formats import WeightFormat
from headrace.kernels.shapes import WeightShape
from headrace.modeling.weights.parameters import ParameterKind, ParameterSpec
from headrace.modeling.weights.tensor_info import TensorInfo

Shapes = Mapping[str, tuple[int, ...]]


@dataclass
class FakeCheckpoint:
    """What `registry.describe` reads. `vectors` holds the few tensors whose values are facts."""

    kind: Literal["gguf", "safetensors"]
    shapes: Shapes
    config: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    vectors: Mapping[str, Sequence[float]] = field(default_factory=dict)
    path: Path = Path("fake-model")

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return {
            n: TensorInfo(n, shape, "F32", 0, 4 * prod(shape)) for n, shape in self.shapes.items()
        }

    def vector(self, name: str) -> NDArray[np.float32]:
        return np.array(self.vectors[name], np.float32)


def hugging_face_shapes(
    config: Mapping[str, Any], prefix: str = "model."
) -> dict[str, tuple[int, ...]]:
    """The tensors that transformers writes for a config that states all its sizes."""
    hidden, intermediate = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    size = config.get("head_dim") or hidden // heads
    architecture = config["architectures"][0]
    is_gemma = architecture.startswith("Gemma")
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.o_proj.weight": (hidden, heads * size),
        "mlp.down_proj.weight": (hidden, intermediate),
    }
    if architecture.startswith("Phi3"):
        layer["self_attn.qkv_proj.weight"] = ((heads + 2 * kv_heads) * size, hidden)
        layer["mlp.gate_up_proj.weight"] = (2 * intermediate, hidden)
    else:
        layer["mlp.gate_proj.weight"] = layer["mlp.up_proj.weight"] = (intermediate, hidden)
        for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            layer[f"self_attn.{name}_proj.weight"] = (count * size, hidden)
            if architecture.startswith("Qwen2") or config.get("attention_bias"):
                layer[f"self_attn.{name}_proj.bias"] = (count * size,)
    if is_gemma:
        layer["pre_feedforward_layernorm.weight"] = (hidden,)
        layer["post_feedforward_layernorm.weight"] = (hidden,)
    if architecture.startswith(("Qwen3", "Gemma3")):
        layer["self_attn.q_norm.weight"] = layer["self_attn.k_norm.weight"] = (size,)
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}embed_tokens.weight": (config["vocab_size"], hidden),
        f"{prefix}norm.weight": (hidden,),
    }
    for index in range(config["num_hidden_layers"]):
        shapes |= {f"{prefix}layers.{index}.{name}": shape for name, shape in layer.items()}
    if not config.get("tie_word_embeddings", is_gemma):
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def gguf_shapes(metadata: Mapping[str, Any], vocab_size: int) -> dict[str, tuple[int, ...]]:
    """The tensors of a GGUF file with these facts, untied, without the extras of some families."""
    arch = metadata["general.architecture"]
    hidden = metadata[f"{arch}.embedding_length"]
    intermediate = metadata[f"{arch}.feed_forward_length"]
    heads = metadata[f"{arch}.attention.head_count"]
    kv_heads = metadata.get(f"{arch}.attention.head_count_kv", heads)
    size = metadata.get(f"{arch}.attention.key_length", hidden // heads)
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (hidden,),
        "attn_q.weight": (heads * size, hidden),
        "attn_k.weight": (kv_heads * size, hidden),
        "attn_v.weight": (kv_heads * size, hidden),
        "attn_output.weight": (hidden, heads * size),
        "ffn_norm.weight": (hidden,),
        "ffn_gate.weight": (intermediate, hidden),
        "ffn_up.weight": (intermediate, hidden),
        "ffn_down.weight": (hidden, intermediate),
    }
    if arch.startswith("gemma"):
        layer |= {"post_attention_norm.weight": (hidden,), "post_ffw_norm.weight": (hidden,)}
    if arch in ("qwen3", "gemma3"):
        layer |= {"attn_q_norm.weight": (size,), "attn_k_norm.weight": (size,)}
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocab_size, hidden),
        "output_norm.weight": (hidden,),
        "output.weight": (vocab_size, hidden),
    }
    for index in range(metadata[f"{arch}.block_count"]):
        shapes |= {f"blk.{index}.{name}": shape for name, shape in layer.items()}
    return shapes


@dataclass(frozen=True)
class ShapePart:
    """A loaded part without data."""

    weight: WeightShape
    first_column: int


def shape_parameters(
    checkpoint: FakeCheckpoint,
    parameters: Sequence[ParameterSpec],
    weight_format: WeightFormat = WeightFormat.W8G32,
) -> dict[str, Any]:
    """What loading would yield, for the shape-only back end."""
    loaded: dict[str, Any] = {}
    for parameter in parameters:
        shapes = [checkpoint.shapes[source.name] for source in parameter.sources]
        counts = [
            shape[0] if source.rows is None else source.rows[1] - source.rows[0]
            for shape, source in zip(shapes, parameter.sources, strict=True)
        ]
        if parameter.kind is ParameterKind.VECTOR:
            loaded[parameter.name] = np.zeros(sum(counts), np.float32)
        else:
            shape = WeightShape(weight_format, sum(counts), shapes[0][1])
            loaded[parameter.name] = (ShapePart(shape, 0),)
    return loaded


def num_weights(checkpoint: FakeCheckpoint, parameters: Sequence[ParameterSpec]) -> int:
    """Numbers in all sources together."""
    return sum(prod(checkpoint.shapes[s.name]) for p in parameters for s in p.sources)
