"""From a checkpoint to the facts of its model: which family, which sizes, which tensors."""

import math
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from headrace.core.errors import ModelLoadError, UnsupportedModelError
from headrace.modeling.facts import MAX_SIZE, Facts
from headrace.modeling.layers.rope import inverse_frequencies
from headrace.modeling.models.encoder_parameters import EncoderNames, EncoderParameterList
from headrace.modeling.models.family import Family
from headrace.modeling.models.gguf_metadata import GGUFHeader
from headrace.modeling.models.names import TensorNames
from headrace.modeling.models.parameters import ParameterList
from headrace.modeling.spec import ModelSpec, RopeSpec
from headrace.modeling.weights.checkpoint import Checkpoint
from headrace.modeling.weights.parameters import ParameterSpec

_MODELS = "headrace.modeling.models"

#: `architectures` of config.json -> where the family is; imported when it is needed.
CONFIG_FAMILIES: Mapping[str, str] = {
    "LlamaForCausalLM": f"{_MODELS}.llama:FAMILY",
    "MistralForCausalLM": f"{_MODELS}.mistral:FAMILY",
    "Qwen2ForCausalLM": f"{_MODELS}.qwen2:FAMILY",
    "Qwen3ForCausalLM": f"{_MODELS}.qwen3:FAMILY",
    "Gemma2ForCausalLM": f"{_MODELS}.gemma2:FAMILY",
    "Gemma3ForCausalLM": f"{_MODELS}.gemma3:FAMILY",
    "Gemma3ForConditionalGeneration": f"{_MODELS}.gemma3:FAMILY",
    "Phi3ForCausalLM": f"{_MODELS}.phi3:FAMILY",
    "BertModel": f"{_MODELS}.bert:FAMILY",
    "BertForMaskedLM": f"{_MODELS}.bert:FAMILY",
    "BertForSequenceClassification": f"{_MODELS}.bert:CLASSIFIER",
}

#: `general.architecture` of GGUF. Mistral files say llama.
GGUF_FAMILIES: Mapping[str, str] = {
    "llama": f"{_MODELS}.llama:FAMILY",
    "qwen2": f"{_MODELS}.qwen2:FAMILY",
    "qwen3": f"{_MODELS}.qwen3:FAMILY",
    "gemma2": f"{_MODELS}.gemma2:FAMILY",
    "gemma3": f"{_MODELS}.gemma3:FAMILY",
    "phi3": f"{_MODELS}.phi3:FAMILY",
    "bert": f"{_MODELS}.bert:FAMILY",
}

#: Radians a position. Every known model stays below 2.
MAX_FREQUENCY = 1e6


def describe(checkpoint: Checkpoint) -> tuple[ModelSpec, tuple[ParameterSpec, ...]]:
    """The model's facts and its parameters, checked against each other.

    Raises UnsupportedModelError for an architecture (or a variant) that we do not have, and
    ModelLoadError for facts that contradict each other or the tensors.
    """
    if checkpoint.kind == "gguf":
        spec, names = _describe_gguf(checkpoint)
    else:
        spec, names = _describe_directory(checkpoint)
    origin = checkpoint.path.name
    _check(spec, origin)
    shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
    if isinstance(names, EncoderNames):
        parameters = EncoderParameterList(spec, names, shapes, origin).build()
    else:
        parameters = ParameterList(spec, names, shapes, origin).build()
    return spec.with_max_context(spec.max_context), parameters


def _describe_gguf(checkpoint: Checkpoint) -> tuple[ModelSpec, TensorNames | EncoderNames]:
    origin = checkpoint.path.name
    metadata = checkpoint.metadata
    architecture = Facts(metadata, origin).text("general.architecture", "")
    family = _find(architecture, GGUF_FAMILIES, origin)
    header = GGUFHeader(
        facts=Facts(metadata, origin, f"{architecture}."),
        shapes={name: info.shape for name, info in checkpoint.tensors.items()},
        vector=checkpoint.vector,
    )
    return family.from_gguf(header), family.gguf_names


def describe_config(config: Mapping[str, Any], origin: str) -> ModelSpec:
    """The facts that a config.json states, without the tensors. Raises as `describe`."""
    spec, _ = _read_config(config, origin)
    _check(spec, origin)
    return spec.with_max_context(spec.max_context)


def _describe_directory(checkpoint: Checkpoint) -> tuple[ModelSpec, TensorNames | EncoderNames]:
    return _read_config(checkpoint.config, f"{checkpoint.path.name}/config.json")


def _read_config(
    config: Mapping[str, Any], origin: str
) -> tuple[ModelSpec, TensorNames | EncoderNames]:
    facts = Facts(config, origin)
    architectures = facts.texts("architectures")
    if not architectures:
        raise ModelLoadError(f"{origin} names no architecture.")
    family = _find(architectures[0], CONFIG_FAMILIES, origin)
    if facts.has("quantization_config"):
        method = facts.section("quantization_config").text("quant_method", "an unknown method")
        raise UnsupportedModelError(
            f"{origin}: weights quantised with {method} are not supported; these are: bf16, f16 and "
            "f32 safetensors, and GGUF."
        )
    text = _text_config(config, facts)
    return family.from_config(
        Facts({**family.config_defaults, **text}, origin)
    ), family.config_names


def _text_config(config: Mapping[str, Any], facts: Facts) -> Mapping[str, Any]:
    """The language model's part of a multimodal config; some keys live only at the top."""
    if not facts.has("text_config"):
        return config
    text = config["text_config"]
    if not isinstance(text, Mapping):
        raise ModelLoadError(f"{facts.origin}: text_config must be an object.")
    shared = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
    return {**shared, **text}


def _find(architecture: str, families: Mapping[str, str], origin: str) -> Family:
    place = families.get(architecture)
    if place is None:
        raise UnsupportedModelError(
            f"{origin}: the architecture '{architecture[:80]}' is not supported; these are: "
            f"{', '.join(families)}."
        )
    module, _, attribute = place.partition(":")
    family = getattr(import_module(module), attribute)
    assert isinstance(family, Family)
    return family


def _check(spec: ModelSpec, origin: str) -> None:
    """Facts that no tensor shape would betray."""
    if spec.num_heads % spec.num_kv_heads:
        raise ModelLoadError(
            f"{origin}: {spec.num_heads} query heads cannot share {spec.num_kv_heads} KV heads evenly."
        )
    if spec.head_size % 2:
        raise ModelLoadError(f"{origin}: heads of {spec.head_size} elements cannot be rotated.")
    for rope in spec.ropes:
        _check_frequencies(rope, spec, origin)
    if spec.max_context > MAX_SIZE:
        raise ModelLoadError(f"{origin}: a context of {spec.max_context} tokens is too large.")
    if spec.head_size * spec.num_heads > 1 << 24:
        raise ModelLoadError(f"{origin}: {spec.num_heads} heads of {spec.head_size} are too large.")


def _check_frequencies(rope: RopeSpec, spec: ModelSpec, origin: str) -> None:
    try:
        frequencies = inverse_frequencies(rope, spec.head_size, spec.max_context)
    except (ArithmeticError, ValueError):
        frequencies = [math.nan]
    if not all(0.0 <= frequency <= MAX_FREQUENCY for frequency in frequencies):
        raise ModelLoadError(f"{origin}: the rope values give frequencies that no model has.")
