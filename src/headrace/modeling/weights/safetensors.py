"""A memory-mapped reader of safetensors files, single or sharded by `model.safetensors.index.json`.

A file is a little-endian u64 header length, that many bytes of JSON, then the data (format: Hugging
Face `safetensors` README). Every number in the header is checked against the file before it is used.
"""

import math
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from headrace.core.errors import ModelLoadError
from headrace.modeling.weights.json_files import read_json_object
from headrace.modeling.weights.tensor_info import TensorInfo

SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
MAX_HEADER_BYTES: Final = 32 << 20
MAX_DIMENSIONS: Final = 8
#: Bytes an element. A dtype that is not here is listed all the same, and refused when it is needed.
ELEMENT_BYTES: Final = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2,
    "U16": 2, "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class SafetensorsFiles:
    """All tensors of a model directory. Build with `SafetensorsFiles.open`."""

    def __init__(self, paths: tuple[Path, ...], *, max_bytes: int | None = None) -> None:
        """Maps the files; with `max_bytes` reads them, each at most so large.

        A file that shrinks while it is mapped ends the process, so one that somebody may be writing is read.
        """
        self.paths = paths
        tensors: dict[str, TensorInfo] = {}
        self._data: dict[str, mmap.mmap | bytes] = {}
        for path in paths:
            data = _map(path) if max_bytes is None else _read(path, max_bytes)
            for info in _read_header(path, data):
                if info.name in tensors:
                    raise ModelLoadError(f"Two files have the tensor {info.name[:80]!r}.")
                tensors[info.name] = info
                self._data[info.name] = data
        self.tensors: Mapping[str, TensorInfo] = tensors

    @staticmethod
    def open(directory: Path) -> "SafetensorsFiles":
        """Map the files and read their headers; ModelLoadError says what is wrong with them."""
        return SafetensorsFiles(_find(directory))

    def raw(self, name: str) -> memoryview:
        """The bytes of one tensor, as a read-only view of its file."""
        info = self.tensors[name]
        return memoryview(self._data[name])[info.offset : info.offset + info.nbytes]


def _find(directory: Path) -> tuple[Path, ...]:
    if (directory / INDEX).is_file():
        return _shards(directory)
    if (directory / SINGLE).is_file():
        return (directory / SINGLE,)
    found = sorted(directory.glob("*.safetensors"))
    if len(found) != 1:
        reason = f"{len(found)} .safetensors files and no {INDEX}" if found else "no .safetensors"
        raise ModelLoadError(f"{directory} has {reason}, so its weights cannot be read.")
    return tuple(found)


def _shards(directory: Path) -> tuple[Path, ...]:
    weight_map = read_json_object(directory / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelLoadError(f"{directory / INDEX} has no weight_map.")
    names = set(weight_map.values())
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or name in (".", ".."):
            raise ModelLoadError(f"{directory / INDEX} names a file outside its directory.")
        if not (directory / name).is_file():
            raise ModelLoadError(f"{directory} lacks {name}, which {INDEX} names.")
    return tuple(directory / name for name in sorted(names))


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: an empty file
        raise ModelLoadError(f"{path} cannot be read: {error}.") from error


def _read(path: Path, max_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error.strerror or error}.") from error
    if len(data) > max_bytes:
        raise ModelLoadError(f"{path} has more than the {max_bytes} bytes that it may have.")
    return data


def _read_header(path: Path, data: mmap.mmap | bytes) -> list[TensorInfo]:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(MAX_HEADER_BYTES, len(data) - 8):
        raise ModelLoadError(f"{path} is not a complete safetensors file.")
    try:
        header = msgspec.json.decode(data[8 : 8 + length], type=dict[str, msgspec.Raw])
        header.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(raw, type=_Entry) for name, raw in header.items()}
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{path} has a damaged safetensors header: {error}.") from error
    return [_check(path, name, entry, 8 + length, len(data)) for name, entry in entries.items()]


def _check(path: Path, name: str, entry: _Entry, start: int, size: int) -> TensorInfo:
    label = f"{path.name}: tensor {name[:80]!r}"
    begin, end = entry.data_offsets
    if len(entry.shape) > MAX_DIMENSIONS or any(length < 0 for length in entry.shape):
        raise ModelLoadError(f"{label} has an impossible shape.")
    if not 0 <= begin <= end or start + end > size:
        raise ModelLoadError(f"{label} lies outside its file, which is cut off or damaged.")
    element = ELEMENT_BYTES.get(entry.dtype)
    if element is not None and math.prod(entry.shape) * element != end - begin:
        raise ModelLoadError(f"{label} does not have as many bytes as its shape needs.")
    return TensorInfo(name, tuple(entry.shape), entry.dtype, start + begin, end - begin)
