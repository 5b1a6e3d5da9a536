"""What of a model decides memory and time, from its header alone: no weight is read."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from headrace.bench.plan.engine_memory import EngineMemory, engine_memory
from headrace.core.errors import ConfigError, ModelLoadError
from headrace.modeling.registry import describe, describe_config
from headrace.modeling.spec import ModelSpec
from headrace.modeling.weights.checkpoint import Checkpoint, open_checkpoint
from headrace.modeling.weights.json_files import read_json_object
from headrace.modeling.weights.parameters import ParameterSpec

#: Bytes of one weight. Of quantised ones, with a scale of 16 bits for each 32.
WEIGHT_BYTES = {"f32": 4.0, "bf16": 2.0, "f16": 2.0, "fp8": 1.0, "int8": 1.0625, "int4": 0.5625}
#: What our engine makes of float weights while it loads them.
QUANTIZED = ("int8", "int4")
_CONFIG_TYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


class ModelFacts(NamedTuple):
    """One model."""

    name: str
    spec: ModelSpec
    num_parameters: int
    num_embedding: int
    """Parameters of the input table alone: of it a token needs one row."""
    weight_bytes: float
    weights: str
    """How they are kept, in words."""
    step_bytes: int | None = None
    """Activations of the largest step; None: not known."""


def read_model(source: str, weights: str, *, is_served_here: bool = False) -> ModelFacts:
    """Of a GGUF file, a model directory, a config.json or a short name. `weights` as `PlanOptions` has it. With
    `is_served_here`, bytes are those of our own engine on CPUs, as far as there are tensors to tell them by.

    Raises ConfigError (ModelLoadError) for what is none of these, or no decoder.
    """
    path = Path(source).expanduser()
    if path.name.endswith(".json") and path.is_file():
        return _from_config(path, weights)
    if path.is_dir() and (path / "config.json").is_file() and not any(path.glob("*.safetensors")):
        return _from_config(path / "config.json", weights)
    if not path.exists():
        path = _cached(source)
    checkpoint = open_checkpoint(path)
    spec, parameters = describe(checkpoint)
    num_parameters = sum(info.num_elements for info in checkpoint.tensors.values())
    in_file = float(sum(info.nbytes for info in checkpoint.tensors.values()))
    types = {info.type: 0 for info in checkpoint.tensors.values()}
    for info in checkpoint.tensors.values():
        types[info.type] += info.num_elements
    kind = max(types, key=lambda name: types[name])
    kept = in_file if weights == "file" else num_parameters * WEIGHT_BYTES[weights]
    words = f"as in the file ({kind})" if weights == "file" else weights
    memory = _memory(checkpoint, spec, parameters, weights) if is_served_here else None
    if memory is not None:
        kept, words = float(memory.weight_bytes), f"{words}, as our engine keeps them"
    found = _facts(path.name, spec, num_parameters, kept, words)
    return found if memory is None else found._replace(step_bytes=memory.step_bytes)


def count_parameters(spec: ModelSpec) -> int:
    """Of a decoder of these sizes."""
    size, heads = spec.hidden_size, spec.num_heads * spec.head_size
    kv = spec.num_kv_heads * spec.head_size
    layer = size * (heads + 2 * kv) + heads * size + 3 * size * spec.intermediate_size
    layer += (heads + 2 * kv) if spec.has_qkv_bias else 0
    layer += size if spec.has_output_bias else 0
    layer += 2 * spec.intermediate_size + size if spec.has_mlp_bias else 0
    layer += 2 * spec.head_size if spec.has_qk_norm else 0
    layer += size * (4 if spec.has_post_norms else 2)
    tables = spec.vocab_size * size * (1 if spec.has_tied_head else 2)
    return spec.num_layers * layer + tables + size


def _memory(
    checkpoint: Checkpoint, spec: ModelSpec, parameters: Sequence[ParameterSpec], weights: str
) -> EngineMemory | None:
    """None where our engine has no such weights, or the model makes no text."""
    if weights not in ("file", *QUANTIZED) or spec.encoder is not None:
        return None
    return engine_memory(checkpoint, spec, parameters, None if weights == "file" else weights)


def _from_config(path: Path, weights: str) -> ModelFacts:
    config = read_json_object(path)
    spec = describe_config(config, str(path.name))
    kept = weights
    if weights == "file":
        text = config.get("text_config")
        told = config.get("torch_dtype") or config.get("dtype")
        if told is None and isinstance(text, dict):
            told = text.get("torch_dtype") or text.get("dtype")
        kept = _CONFIG_TYPES.get(str(told), "bf16")
    count = count_parameters(spec)
    name = path.parent.name if path.name == "config.json" else path.stem
    return _facts(name or path.stem, spec, count, count * WEIGHT_BYTES[kept], kept)


def _facts(name: str, spec: ModelSpec, count: int, kept: float, words: str) -> ModelFacts:
    if spec.encoder is not None:
        raise ModelLoadError(f"{name} makes no text; plans are for models that do.")
    embedding = 0 if spec.has_tied_head else spec.vocab_size * spec.hidden_size
    return ModelFacts(name, spec, count, embedding, kept, words)


def _cached(source: str) -> Path:
    """A short name, or another source that is in the cache already: no large weights are fetched for a plan."""
    from headrace.modeling.weights.sources import SHORT_NAMES, list_models, near_name, resolve

    if source in SHORT_NAMES or source in {
        name for model in list_models() for name in (model.name, model.source)
    }:
        return resolve(source)
    near = near_name(source)
    hint = f" Did you mean {near}?" if near else ""
    raise ConfigError(
        f"'{source[:80]}' is no file, no short name and not in the cache; give a GGUF file, a model directory, its config.json, "
        f"or `headrace models pull` it first.{hint}"
    )
