"""Which files of a repository, bucket or wheel make a model."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Final

#: Of a Hugging Face directory. Other weights (pytorch_model.bin, ONNX, …) are not fetched.
WANTED: Final = ("*.safetensors", "*.json", "tokenizer*", "*.jinja")
#: Copies of the same weights in other layouts.
UNWANTED: Final = ("consolidated*", "original/*", "*/*.safetensors", "[!1]*/*.json")
TEMPLATES: Final = "additional_chat_templates"
#: How sentence-transformers pools the states of its models.
POOLING: Final = "1_Pooling/config.json"


def model_files(names: Iterable[str]) -> list[str]:
    """The relative names that belong to a model directory: flat, but for extra chat templates and pooling."""
    return sorted(name for name in names if _is_wanted(name))


def _is_wanted(name: str) -> bool:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or not path.name:
        return False
    if name == POOLING:
        return True
    if len(path.parts) == 2 and path.parts[0] == TEMPLATES:
        return path.suffix == ".jinja"
    return (
        len(path.parts) == 1
        and any(fnmatchcase(name, pattern) for pattern in WANTED)
        and not any(fnmatchcase(name, pattern) for pattern in UNWANTED)
    )


def is_model_directory(names: Iterable[str]) -> bool:
    """config.json beside safetensors files."""
    found = set(names)
    return "config.json" in found and any(name.endswith(".safetensors") for name in found)
