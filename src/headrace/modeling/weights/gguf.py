"""A lazy, memory-mapped reader of GGUF headers (versions 2 and 3, little endian).

Opening walks the header once and decodes keys and tensor infos only; a metadata value is decoded when
it is asked for. Every length in the file is checked against the file's size before it is used, so a
hostile or truncated file costs a `ModelLoadError` and no memory. No numpy: the HTTP process reads its
tokenizer from here.
"""

import mmap
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from headrace.core.errors import ModelLoadError, UnsupportedModelError
from headrace.modeling.weights.ggml_types import GGML_TYPES, SUPPORTED_TYPES
from headrace.modeling.weights.gguf_values import HeaderCursor, decode_value
from headrace.modeling.weights.tensor_info import TensorInfo

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32
MAX_DIMENSIONS: Final = 4
MAX_PARTS: Final = 10_000
PART_NAME: Final = re.compile(r"^(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")


class GGUFMetadata(Mapping[str, Any]):
    """Metadata by key. A value is decoded at each access; keep large ones, such as token lists."""

    def __init__(self, cursor: HeaderCursor, entries: dict[str, tuple[int, int]]) -> None:
        self._cursor = cursor
        self._entries = entries  # key -> (value type, position)

    def __getitem__(self, key: str) -> Any:
        value_type, position = self._entries[key]
        return decode_value(self._cursor, value_type, position)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries


class GGUFFile:
    """One GGUF model: a file, or all parts of a split one. Build with `GGUFFile.open`."""

    def __init__(
        self, path: Path, metadata: GGUFMetadata, tensors: dict[str, TensorInfo], data: mmap.mmap
    ) -> None:
        self.path = path
        self.metadata: Mapping[str, Any] = metadata
        self.tensors: Mapping[str, TensorInfo] = tensors
        self.parts: tuple[Path, ...] = (path,)
        self._data = dict.fromkeys(tensors, data)  # tensor name -> the map of its part

    @staticmethod
    def open(path: Path | str) -> "GGUFFile":
        """Map the file and read its header; of a split model, any part opens all of them.

        Raises ModelLoadError with the reason for anything that is not a complete, sane GGUF model.
        """
        path = Path(path)
        first = _open_part(path)
        num_parts = first.metadata.get("split.count", 1)
        if not isinstance(num_parts, int) or num_parts <= 1:
            return first
        return _join_parts(path, num_parts)

    def raw(self, name: str) -> memoryview:
        """The bytes of one tensor, as a read-only view of the mapped file."""
        info = self.tensors[name]
        return memoryview(self._data[name])[info.offset : info.offset + info.nbytes]


def _open_part(path: Path) -> GGUFFile:
    data = _map(path)
    cursor = HeaderCursor(data, path.name)
    try:
        return _read(path, data, cursor)
    except (struct.error, OverflowError) as error:
        raise ModelLoadError(f"{path.name} is cut off or damaged in its GGUF header.") from error


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            if file.read(4) != MAGIC:
                raise ModelLoadError(f"{path} is not a GGUF file.")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error.strerror or error}.") from error


def _read(path: Path, data: mmap.mmap, cursor: HeaderCursor) -> GGUFFile:
    cursor.position = len(MAGIC)
    version = cursor.u32()
    if version not in VERSIONS:
        big_endian = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
        found = "big endian" if big_endian else f"version {version}"
        raise ModelLoadError(f"{path.name} is GGUF {found}; little endian 2 and 3 are supported.")
    num_tensors, num_entries = cursor.u64(), cursor.u64()
    cursor.require_room(num_tensors, 24, "tensor infos")
    cursor.require_room(num_entries, 13, "metadata entries")
    entries = _read_entries(cursor, num_entries)
    metadata = GGUFMetadata(cursor, entries)
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
        raise ModelLoadError(f"{path.name} has an unusable alignment: {alignment!r:.40}.")
    unplaced = [_read_tensor(cursor) for _ in range(num_tensors)]
    start = -(-cursor.position // alignment) * alignment
    return GGUFFile(path, metadata, _place(unplaced, start, alignment, cursor), data)


def _read_entries(cursor: HeaderCursor, num_entries: int) -> dict[str, tuple[int, int]]:
    entries: dict[str, tuple[int, int]] = {}
    for _ in range(num_entries):
        key = cursor.name()
        value_type = cursor.u32()
        if key in entries:
            raise ModelLoadError(f"{cursor.file_name} has the metadata key {key[:80]!r} twice.")
        entries[key] = (value_type, cursor.position)
        cursor.skip_value(value_type)
    return entries


def _read_tensor(cursor: HeaderCursor) -> TensorInfo:
    """One tensor info; its offset still counts from the start of the data section."""
    name = cursor.name()
    num_dimensions = cursor.u32()
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise ModelLoadError(
            f"{cursor.file_name}: tensor {name[:80]!r} has {num_dimensions} dimensions."
        )
    inputs_first = [cursor.u64() for _ in range(num_dimensions)]
    number, offset = cursor.u32(), cursor.u64()
    block = GGML_TYPES.get(number)
    if block is None:
        raise UnsupportedModelError(
            f"{cursor.file_name}: tensor {name[:80]!r} has the unknown type number {number}; "
            f"supported are {', '.join(SUPPORTED_TYPES)}."
        )
    if 0 in inputs_first or inputs_first[0] % block.block_size:
        raise ModelLoadError(
            f"{cursor.file_name}: tensor {name[:80]!r} has rows of {inputs_first[0]} elements, "
            f"which {block.name} cannot hold."
        )
    shape = tuple(reversed(inputs_first))
    info = TensorInfo(name, shape, block.name, offset, 0)
    nbytes = info.num_elements // block.block_size * block.block_bytes
    return TensorInfo(name, shape, block.name, offset, nbytes)


def _place(
    unplaced: list[TensorInfo], start: int, alignment: int, cursor: HeaderCursor
) -> dict[str, TensorInfo]:
    """Offsets from the start of the file, each checked to lie inside it."""
    tensors: dict[str, TensorInfo] = {}
    for info in unplaced:
        label = f"{cursor.file_name}: tensor {info.name[:80]!r}"
        if info.name in tensors:
            raise ModelLoadError(f"{label} is there twice.")
        if info.offset % alignment:
            raise ModelLoadError(f"{label} is not aligned to {alignment} bytes.")
        end = start + info.offset + info.nbytes
        if end > cursor.size:
            raise ModelLoadError(
                f"{label} ends at byte {end}, but the file has {cursor.size}: it is cut off."
            )
        tensors[info.name] = TensorInfo(
            info.name, info.shape, info.type, start + info.offset, info.nbytes
        )
    return tensors


def _join_parts(path: Path, num_parts: int) -> GGUFFile:
    """All parts of `stem-00001-of-0000N.gguf`, the metadata being that of the first."""
    match = PART_NAME.match(path.name)
    if match is None or int(match["count"]) != num_parts or num_parts > MAX_PARTS:
        raise ModelLoadError(
            f"{path.name} is one of {num_parts} parts, but its name does not say which: "
            "NAME-00001-of-0000N.gguf is expected."
        )
    names = [f"{match['stem']}-{n:05d}-of-{num_parts:05d}.gguf" for n in range(1, num_parts + 1)]
    paths = tuple(path.with_name(name) for name in names)
    missing = [part.name for part in paths if not part.is_file()]
    if missing:
        raise ModelLoadError(f"{path.name} lacks its part {missing[0]}.")
    joined = _open_part(paths[0])
    tensors = dict(joined.tensors)
    for part in map(_open_part, paths[1:]):
        for name, info in part.tensors.items():
            if name in tensors:
                raise ModelLoadError(f"Two parts of {path.name} have the tensor {name[:80]!r}.")
            tensors[name] = info
        joined._data.update(part._data)
    joined.tensors = tensors
    joined.parts = paths
    return joined
