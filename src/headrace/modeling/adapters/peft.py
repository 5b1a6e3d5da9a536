"""Reads LoRA adapters as PEFT saves them: adapter_config.json and adapter_model.safetensors.

What an adapter adds to a projection is `B . (A . x)` times its scale: alpha / r, or alpha / sqrt(r) with
`use_rslora` (Kalajdzievski, 2023); `rank_pattern` and `alpha_pattern` set r and alpha of single projections.
Tensors that would change anything else are refused, never left out.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ModelLoadError
from headrace.kernels.formats import LowRank
from headrace.modeling.adapters.files import CONFIG, WEIGHTS
from headrace.modeling.adapters.places import Place, all_places
from headrace.modeling.facts import Facts
from headrace.modeling.models.names import HUGGING_FACE
from headrace.modeling.spec import ModelSpec
from headrace.modeling.weights.json_files import read_json_object
from headrace.modeling.weights.safetensors import MAX_HEADER_BYTES, SafetensorsFiles

#: Field → whether a value of it is what we do.
_WANTED: Final[Mapping[str, tuple[Any, ...]]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "use_dora": (False, None),
    "use_qalora": (False, None),
    "fan_in_fan_out": (False, None),
    "lora_bias": (False, None),
    "modules_to_save": (None, []),
    "trainable_token_indices": (None, [], {}),
    "layer_replication": (None, []),
    "target_parameters": (None, []),
    "alora_invocation_tokens": (None, []),
    # Others change the base model's weights when training begins.
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
}
_KEY = re.compile(
    r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])(?:\.default)?\.weight"
)
_LAYER = re.compile(r"(?:.*\.)?layers\.(?P<layer>\d+)\.(?P<kind>[a-z_]+\.[a-z_]+)")


def _kinds() -> dict[str, tuple[str, ...]]:
    """The places of each projection in a layer, by its name there; a joined one has several."""
    names = HUGGING_FACE
    return {
        names.q: ("q",),
        names.k: ("k",),
        names.v: ("v",),
        names.qkv: ("q", "k", "v"),
        names.output: ("output",),
        names.gate: ("gate",),
        names.up: ("up",),
        names.gate_up: ("gate", "up"),
        names.down: ("down",),
    }


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """One adapter: what it adds at each place, its scale a factor of `up`."""

    entries: Mapping[str, LowRank]
    digest: str
    """sha256 of all that decides what it adds, hex."""
    rank: int
    """The largest."""


def read_adapter(path: Path, spec: ModelSpec, *, max_rank: int) -> LoraAdapter:
    """Read a directory. Raises ModelLoadError, in one sentence, for what cannot be served."""
    if not all(_is_file(path / name) for name in (CONFIG, WEIGHTS)):
        raise ModelLoadError(f"{path} is no LoRA adapter: it needs {CONFIG} and {WEIGHTS}.")
    config = read_json_object(path / CONFIG)
    origin = f"{path.name}/{CONFIG}"
    for name, wanted in _WANTED.items():
        value = config.get(name, wanted[0])
        if not any(
            value is item or (type(value) is type(item) and value == item) for item in wanted
        ):
            raise ModelLoadError(f"{origin}: {name} {str(value)[:80]!r} is not supported.")
    scales = _Scales(config, origin)
    places, kinds = all_places(spec), _kinds()
    files = SafetensorsFiles((path / WEIGHTS,), max_bytes=_max_bytes(places, max_rank))
    entries: dict[str, LowRank] = {}
    for module, sides in sorted(_pairs(files, path).items()):
        targets = _targets(module, kinds, places, spec)
        rank, scale = scales.of(module)
        # The shapes first: what does not fit is not read, whatever its size.
        shapes = [files.tensors[sides[side]].shape for side in "AB"]
        _check(f"{path.name}: {module[:120]}", shapes, targets, rank, max_rank)
        down, up = (_matrix(files, sides[side]) for side in "AB")
        up = _scaled(up, scale, module)
        first = 0
        for place in targets:
            if place.name in entries:
                raise ModelLoadError(f"{path.name}: two tensors change {place.name}.")
            entries[place.name] = LowRank(down, up[first : first + place.num_outputs])
            first += place.num_outputs
    if not entries:
        raise ModelLoadError(f"{path.name}: the adapter changes nothing.")
    return LoraAdapter(entries, _digest(entries), max(len(e.down) for e in entries.values()))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # of a directory that we may not look into
        return False


def _max_bytes(places: Mapping[str, Place], max_rank: int) -> int:
    """Of a file of the largest adapter: all places in float32, and as much again as a header may have."""
    width = sum(place.num_inputs + place.num_outputs for place in places.values())
    return 4 * max_rank * width + MAX_HEADER_BYTES


class _Scales:
    """Rank and scale of a module, as PEFT's config gives them."""

    def __init__(self, config: Mapping[str, Any], origin: str) -> None:
        facts = Facts(config, origin)
        self._origin = origin
        self._rank = facts.integer("r", 8, minimum=1)
        self._alpha = _number(config.get("lora_alpha", 8), "lora_alpha", origin)
        self._is_stabilised = facts.boolean("use_rslora", False)
        self._ranks = _patterns(config, "rank_pattern", origin)
        self._alphas = _patterns(config, "alpha_pattern", origin)

    def of(self, module: str) -> tuple[int, float]:
        """(rank, what the product is multiplied by)."""
        rank = int(_match(self._ranks, module, self._rank))
        alpha = _match(self._alphas, module, self._alpha)
        if rank < 1:
            raise ModelLoadError(f"{self._origin}: rank_pattern gives a rank below 1.")
        return rank, alpha / (math.sqrt(rank) if self._is_stabilised else rank)


def _patterns(
    config: Mapping[str, Any], name: str, origin: str
) -> list[tuple[re.Pattern[str], float]]:
    found = config.get(name) or {}
    if not isinstance(found, Mapping) or len(found) > 4096:
        raise ModelLoadError(f"{origin}: {name} must be an object.")
    patterns = []
    for key, value in found.items():
        # PEFT takes keys for regular expressions at the end of a module's name; ours are names only.
        if not re.fullmatch(r"\^?[\w.\\]+\$?", key):
            raise ModelLoadError(
                f"{origin}: the pattern {key[:80]!r} of {name} is not supported; names are."
            )
        patterns.append((re.compile(rf"(?:.*\.)?({key})$"), _number(value, name, origin)))
    return patterns


def _match(patterns: list[tuple[re.Pattern[str], float]], module: str, default: float) -> float:
    return next((value for pattern, value in patterns if pattern.match(module)), default)


def _number(value: object, name: str, origin: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ModelLoadError(f"{origin}: {name} must be a number.")
    return float(value)


def _pairs(files: SafetensorsFiles, path: Path) -> dict[str, dict[str, str]]:
    """Tensor names by module and side; both sides of each."""
    pairs: dict[str, dict[str, str]] = {}
    for name in files.tensors:
        match = _KEY.fullmatch(name)
        if match is None:
            raise ModelLoadError(f"{path.name}: the tensor {name[:120]!r} is not supported.")
        sides = pairs.setdefault(match["module"], {})
        if match["side"] in sides:
            raise ModelLoadError(f"{path.name}: two tensors are {name[:120]!r}, spelt differently.")
        sides[match["side"]] = name
    for module, sides in pairs.items():
        if len(sides) != 2:
            raise ModelLoadError(f"{path.name}: {module[:120]} lacks lora_A or lora_B.")
    return pairs


def _targets(
    module: str,
    kinds: Mapping[str, tuple[str, ...]],
    places: Mapping[str, Place],
    spec: ModelSpec,
) -> list[Place]:
    match = _LAYER.fullmatch(module)
    names = kinds.get(match["kind"]) if match is not None else None
    if match is None or names is None:
        raise ModelLoadError(f"An adapter of {module[:120]!r} is not supported; projections are.")
    found = [places.get(f"layers.{int(match['layer'])}.{name}") for name in names]
    if None in found:
        raise ModelLoadError(
            f"The model has {spec.num_layers} layers, but there is {module[:120]}."
        )
    return [place for place in found if place is not None]


def _matrix(files: SafetensorsFiles, name: str) -> NDArray[np.float32]:
    info = files.tensors[name]
    if info.type not in ("F32", "F16", "BF16"):
        raise ModelLoadError(f"The tensor {name[:120]!r} is not a matrix of f32, f16 or bf16.")
    raw = files.raw(name)
    if info.type == "BF16":
        words = np.frombuffer(raw, "<u2").astype(np.uint32) << 16
        values: NDArray[np.float32] = words.view(np.float32)
    else:
        values = np.frombuffer(raw, "<f4" if info.type == "F32" else "<f2").astype(np.float32)
    if not np.isfinite(values).all():
        raise ModelLoadError(f"The tensor {name[:120]!r} holds numbers that are not finite.")
    return values.reshape(info.shape)


def _scaled(up: NDArray[np.float32], scale: float, module: str) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        product = up * np.float32(scale)
    if not np.isfinite(product).all():
        raise ModelLoadError(f"{module[:120]} times its scale {scale:g} is not finite.")
    return product


def _check(
    label: str,
    shapes: list[tuple[int, ...]],
    targets: list[Place],
    rank: int,
    max_rank: int,
) -> None:
    num_outputs, num_inputs = sum(place.num_outputs for place in targets), targets[0].num_inputs
    wanted = [(rank, num_inputs), (num_outputs, rank)]
    if shapes != wanted:
        raise ModelLoadError(
            f"{label} has A {list(shapes[0])} and B {list(shapes[1])}, but the model and the config ask "
            f"for {list(wanted[0])} and {list(wanted[1])}."
        )
    if rank > max_rank:
        raise ModelLoadError(f"{label} has rank {rank}, but --max-lora-rank is {max_rank}.")


def _digest(entries: Mapping[str, LowRank]) -> str:
    total = sha256(b"headrace/lora/1")
    for name, entry in sorted(entries.items()):
        for matrix in (entry.down, entry.up):
            total.update(f"{name} {matrix.shape} ".encode())
            total.update(np.ascontiguousarray(matrix, "<f4").tobytes())
    return total.hexdigest()
