"""What a family is: two ways to read its facts, two tables of tensor names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.modeling.facts import Facts
from headrace.modeling.models.encoder_parameters import EncoderNames
from headrace.modeling.models.gguf_metadata import GGUFHeader
from headrace.modeling.models.names import TensorNames
from headrace.modeling.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Family:
    """One model family as data. `Facts` of config.json have `config_defaults` beneath them."""

    name: str
    from_config: Callable[[Facts], ModelSpec]
    from_gguf: Callable[[GGUFHeader], ModelSpec]
    config_names: TensorNames | EncoderNames
    gguf_names: TensorNames | EncoderNames
    config_defaults: Mapping[str, Any] = field(default_factory=dict)
    """What Hugging Face assumes for keys that a config.json leaves out."""
