"""One interface over the two ways in which models come: a GGUF file, a Hugging Face directory.

Weights, and what decides their shapes; `preprocess` reads tokenizer and template. Opening loads no arrays.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from headrace.core.errors import ModelLoadError
from headrace.modeling.weights.gguf import PART_NAME, GGUFFile
from headrace.modeling.weights.json_files import read_json_object
from headrace.modeling.weights.safetensors import SafetensorsFiles
from headrace.modeling.weights.tensor_info import TensorInfo

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace.kernels.formats import Matrix


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
        # Here, not at the top: whoever only looks at headers needs no arrays.
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

    def __init__(self, file: GGUFFile) -> None:
        self._store = file
        self.path = file.path
        self.files = file.parts
        self.tensors = file.tensors
        self.metadata = file.metadata
        self.config: Mapping[str, Any] = {}


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
