"""Writes random PEFT adapters, and what they make of a transformers model."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Sides = tuple[NDArray[np.float32], NDArray[np.float32]]
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def random_sides(
    model: Any, targets: Sequence[str], rank: int, seed: int, ranks: Mapping[str, int] | None = None
) -> dict[str, Sides]:
    """(A, B) of each linear of a transformers model whose name ends in a target, rounded to bf16."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, module in model.named_modules():
        kind = name.rpartition(".")[2]
        if kind not in targets:
            continue
        own = (ranks or {}).get(kind, rank)
        num_outputs, num_inputs = module.weight.shape
        down = rng.standard_normal((own, num_inputs)) / num_inputs**0.5
        up = rng.standard_normal((num_outputs, own)) / own**0.5
        found[name] = (_bf16(down), _bf16(up))
    return found


def tiny_sides(
    *,
    targets: Sequence[str] = ("self_attn.q_proj", "mlp.down_proj"),
    rank: int = 4,
    seed: int = 1,
    num_layers: int = 2,
) -> dict[str, Sides]:
    """(A, B) for the model of `make_tiny_llama`, without torch."""
    rng = np.random.default_rng(seed)
    sizes = {"q_proj": (64, 64), "k_proj": (32, 64), "down_proj": (64, 128), "up_proj": (128, 64)}
    found = {}
    for layer in range(num_layers):
        for target in targets:
            num_outputs, num_inputs = sizes[target.rpartition(".")[2]]
            down = rng.standard_normal((rank, num_inputs)) / num_inputs**0.5
            up = rng.standard_normal((num_outputs, rank)) / rank**0.5
            found[f"model.layers.{layer}.{target}"] = (_bf16(down), _bf16(up))
    return found


def write_adapter(
    path: Path, sides: Mapping[str, Sides], *, rank: int, alpha: float, **config: Any
) -> Path:
    """adapter_config.json and adapter_model.safetensors, as PEFT saves them."""
    from safetensors.numpy import save_file

    path.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, (down, up) in sides.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = down
        tensors[f"base_model.model.{name}.lora_B.weight"] = up
    save_file(tensors, path / "adapter_model.safetensors")
    values = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "bias": "none", **config}
    (path / "adapter_config.json").write_text(json.dumps(values))
    return path


def merged(model: Any, sides: Mapping[str, Sides], scales: Mapping[str, float]) -> Any:
    """A copy of the model with `scale * B A` added to its weights; scales by kind, "" for the rest."""
    import copy

    import torch

    changed = copy.deepcopy(model)
    modules = dict(changed.named_modules())
    with torch.no_grad():
        for name, (down, up) in sides.items():
            scale = scales.get(name.rpartition(".")[2], scales[""])
            delta = up.astype(np.float64) @ down.astype(np.float64) * scale
            modules[name].weight += torch.from_numpy(delta.astype(np.float32))
    return changed


def _bf16(matrix: NDArray[np.float64]) -> NDArray[np.float32]:
    bits = matrix.astype(np.float32).view(np.uint32) & 0xFFFF0000
    return bits.view(np.float32)
