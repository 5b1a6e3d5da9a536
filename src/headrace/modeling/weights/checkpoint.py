"""One interface over the two ways in which models come: a GGUF file, a Hugging Face directory.

Importing this loads no arrays: the HTTP process reads tokenizer and template through it.
"""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from headrace.core.errors import ModelLoadError
from headrace.modeling.weights.gguf import PART_NAME, GGUFFile
from headrace.modeling.weights.json_files import read_json_object, read_text
from headrace.modeling.weights.safetensors import SafetensorsFiles
from headrace.modeling.weights.tensor_info import TensorInfo

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace.kernels.formats import Matrix

DEFAULT_TEMPLATE = "default"


class TensorStore(Protocol):
    """Tensors by name, and their bytes."""

    tensors: Mapping[str, TensorInfo]

    def raw(self, name: str) -> memoryview: ...


class Checkpoint(Protocol):
    """A model on disk: its weights, and what it says about itself."""

    @property
    def kind(self) -> Literal["gguf", "safetensors"]: ...

    @property
    def path(self) -> Path:
        """The GGUF file or the directory."""
        ...

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold weights, in a fixed order."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    @property
    def metadata(self) -> Mapping[str, Any]:
        """GGUF metadata; empty for a directory. Values are decoded at each access."""
        ...

    @property
    def config(self) -> Mapping[str, Any]:
        """config.json; empty for GGUF."""
        ...

    @property
    def generation_config(self) -> Mapping[str, Any]:
        """generation_config.json; empty when there is none."""
        ...

    @property
    def tokenizer_config(self) -> Mapping[str, Any]:
        """tokenizer_config.json; empty when there is none."""
        ...

    @property
    def tokenizer_path(self) -> Path | None:
        """tokenizer.json; None for GGUF, whose tokenizer is in the metadata."""
        ...

    @property
    def chat_templates(self) -> Mapping[str, str]:
        """Jinja sources by name; the usual one is "default". Empty when the model has none."""
        ...

    def matrix(self, name: str, rows: tuple[int, int] | None = None) -> "Matrix":
        """A tensor, or its output rows [start, stop), as [N, K]; leading dimensions are joined."""
        ...

    def vector(self, name: str) -> "NDArray[np.float32]":
        """A tensor of any type, flattened, in float32."""
        ...


class _Unpacking:
    """`matrix` and `vector` over any store of raw tensors."""

    tensors: Mapping[str, TensorInfo]
    _store: TensorStore
    path: Path

    def matrix(self, name: str, rows: tuple[int, int] | None = None) -> "Matrix":
        # Here, not at the top: only the engine process unpacks weights.
        from headrace.modeling.quantization.unpack import unpack

        info = self._info(name)
        num_inputs = info.shape[-1] if info.shape else 1
        num_outputs = info.num_elements // num_inputs if num_inputs else 0
        label = f"{self.path.name}: tensor {name[:80]}"
        span = (0, num_outputs) if rows is None else rows
        if span[1] > num_outputs:
            raise ModelLoadError(f"{label} has {num_outputs} rows, but row {span[1]} is needed.")
        return unpack(info.type, self._store.raw(name), num_inputs, span, name=label)

    def vector(self, name: str) -> "NDArray[np.float32]":
        from headrace.modeling.quantization.dequantize import dequantize

        return dequantize(self.matrix(name)).reshape(-1)

    def _info(self, name: str) -> TensorInfo:
        info = self.tensors.get(name)
        if info is None:
            raise ModelLoadError(f"{self.path.name} has no tensor {name[:80]!r}.")
        return info


class GGUFCheckpoint(_Unpacking):
    """A GGUF file, or all parts of a split one."""

    kind: Literal["gguf"] = "gguf"
    tokenizer_path: Path | None = None

    def __init__(self, file: GGUFFile) -> None:
        self._store = file
        self.path = file.path
        self.files = file.parts
        self.tensors = file.tensors
        self.metadata = file.metadata
        self.config: Mapping[str, Any] = {}
        self.generation_config: Mapping[str, Any] = {}
        self.tokenizer_config: Mapping[str, Any] = {}

    @cached_property
    def chat_templates(self) -> Mapping[str, str]:
        """`tokenizer.chat_template`, and `tokenizer.chat_template.NAME` for named ones."""
        prefix = "tokenizer.chat_template"
        templates = {
            key.removeprefix(prefix).removeprefix(".") or DEFAULT_TEMPLATE: self.metadata[key]
            for key in self.metadata
            if key == prefix or key.startswith(f"{prefix}.")
        }
        return {name: text for name, text in templates.items() if isinstance(text, str)}


class DirectoryCheckpoint(_Unpacking):
    """A directory as Hugging Face lays it out: config.json beside safetensors files."""

    kind: Literal["safetensors"] = "safetensors"

    def __init__(self, path: Path) -> None:
        if not (path / "config.json").is_file():
            raise ModelLoadError(f"{path} has no config.json, so it is not a model directory.")
        store = SafetensorsFiles.open(path)
        self._store = store
        self.path = path
        self.files = store.paths
        self.tensors = store.tensors
        self.metadata: Mapping[str, Any] = {}
        self.config: Mapping[str, Any] = read_json_object(path / "config.json")

    @cached_property
    def generation_config(self) -> Mapping[str, Any]:
        return self._optional("generation_config.json")

    @cached_property
    def tokenizer_config(self) -> Mapping[str, Any]:
        return self._optional("tokenizer_config.json")

    @property
    def tokenizer_path(self) -> Path | None:
        path = self.path / "tokenizer.json"
        return path if path.is_file() else None

    @cached_property
    def chat_templates(self) -> Mapping[str, str]:
        """From tokenizer_config.json (text, or a list of named ones), then from files of their own.

        chat_template.jinja wins over the config, as in transformers, which writes it since 4.43.
        """
        templates: dict[str, str] = {}
        given = self.tokenizer_config.get("chat_template")
        given = (
            given
            if given is not None
            else self._optional("chat_template.json").get("chat_template")
        )
        if isinstance(given, str):
            templates[DEFAULT_TEMPLATE] = given
        for entry in given if isinstance(given, list) else []:
            match entry:
                case {"name": str(name), "template": str(text)}:
                    templates[name] = text
        if (self.path / "chat_template.jinja").is_file():
            templates[DEFAULT_TEMPLATE] = read_text(self.path / "chat_template.jinja")
        for path in sorted((self.path / "additional_chat_templates").glob("*.jinja")):
            templates[path.stem] = read_text(path)
        return templates

    def _optional(self, name: str) -> Mapping[str, Any]:
        path = self.path / name
        return read_json_object(path) if path.is_file() else {}


def open_checkpoint(path: Path | str) -> Checkpoint:
    """Open a GGUF file, a model directory, or a directory that holds one GGUF model.

    Raises ModelLoadError when it is none of these. Reads headers only.
    """
    path = Path(path)
    if not path.exists():
        raise ModelLoadError(f"{path} does not exist.")
    if path.is_file():
        if path.suffix == ".safetensors":
            raise ModelLoadError(
                f"{path} is one file of a model; give its directory {path.parent}."
            )
        return GGUFCheckpoint(GGUFFile.open(path))
    if not (path / "config.json").is_file() or not any(path.glob("*.safetensors")):
        ggufs = [file for file in sorted(path.glob("*.gguf")) if not _is_later_part(file)]
        if len(ggufs) == 1:
            return GGUFCheckpoint(GGUFFile.open(ggufs[0]))
        if ggufs:
            names = ", ".join(file.name for file in ggufs)
            raise ModelLoadError(f"{path} holds several GGUF models; give one of {names}.")
    return DirectoryCheckpoint(path)


def _is_later_part(path: Path) -> bool:
    match = PART_NAME.match(path.name)
    return match is not None and int(match["number"]) > 1
