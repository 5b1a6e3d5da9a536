"""Packed weights on disk, mapped at the next start.

An entry is one file, named by a hash of what it depends on:

    page 0    magic, then position, length and sha256 of the table
    page 1..  arrays, each at a multiple of 64 bytes
    the end   the table (msgpack): key, digest, and where each parameter's arrays lie

The table is written last and the file is renamed into place only after it has reached the disk, so
an entry is complete or absent. One that is damaged, cut off or of another version is ignored, and
replaced by the next start. Reading checks the table and a sample of every array, never all of it.
"""

import fcntl
import hashlib
import logging
import mmap
import os
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.kernels.formats import PackedWeight, WeightFormat
from headrace.kernels.packing import LAYOUT_VERSION
from headrace.modeling.weights.checkpoint import Checkpoint
from headrace.modeling.weights.loaded import LoadedWeights
from headrace.modeling.weights.parameters import LoadedParameter, PackedPart, ParameterSpec

MAGIC: Final = b"HRPACK\x00\x01"
#: Of this file format and of what unpackers yield; a change makes older entries unreadable.
VERSION: Final = 1
PAGE: Final = 4096
ALIGNMENT: Final = 64
SAMPLE_BYTES: Final = 256
#: Entries that were used least recently go when all together take more.
MAX_CACHE_BYTES: Final = 64 << 30
#: Room that must stay free on the disk after an entry is written.
DISK_MARGIN_BYTES: Final = 256 << 20
SUFFIX: Final = ".packed"
_PREFIX: Final = struct.Struct("<8sQQ32s")

_log = logging.getLogger(__name__)


class CacheKey(msgspec.Struct, frozen=True, array_like=True):
    """Everything that packed weights depend on."""

    version: int
    layout: int
    isa: str
    quantize: str | None
    files: tuple[tuple[str, int, int, int], ...]  # path, size, mtime in ns, inode
    specs: str  # hex sha256 of the parameter list, rows of a shard included

    @staticmethod
    def of(
        checkpoint: Checkpoint,
        specs: Sequence[ParameterSpec],
        *,
        isa: str,
        quantize: str | None,
    ) -> "CacheKey":
        stats = [(str(path.resolve()), path.stat()) for path in checkpoint.files]
        return CacheKey(
            version=VERSION,
            layout=LAYOUT_VERSION,
            isa=isa,
            quantize=quantize,
            files=tuple((p, s.st_size, s.st_mtime_ns, s.st_ino) for p, s in stats),
            specs=hashlib.sha256(msgspec.msgpack.encode(list(specs))).hexdigest(),
        )

    @property
    def name(self) -> str:
        """The entry's file name."""
        return hashlib.sha256(msgspec.msgpack.encode(self)).hexdigest()[:40] + SUFFIX


class _Array(msgspec.Struct, frozen=True, array_like=True):
    """One array in the file, with the checksum of its first bytes."""

    offset: int
    nbytes: int
    sample: int


class _Part(msgspec.Struct, frozen=True, array_like=True):
    array: _Array
    first_column: int
    format: WeightFormat
    num_outputs: int
    num_inputs: int
    has_mins: bool
    code_offset: int


class _Table(msgspec.Struct, frozen=True, array_like=True):
    key: CacheKey
    digest: str
    vectors: dict[str, _Array]
    matrices: dict[str, tuple[_Part, ...]]
    order: tuple[str, ...]


# ---- reading -----------------------------------------------------------------------------------


def read_entry(directory: Path, key: CacheKey) -> LoadedWeights | None:
    """Map the entry for `key`, or None when there is none that can be trusted."""
    path = directory / key.name
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        weights = _read(data, key)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, struct.error, msgspec.MsgspecError) as error:
        _log.warning("Ignoring the packed weights in %s, which are damaged: %s.", path, error)
        return None
    with suppress(OSError):
        os.utime(path)  # the time of last use
    return weights


def _read(data: mmap.mmap, key: CacheKey) -> LoadedWeights:
    magic, position, length, checksum = _PREFIX.unpack_from(data)
    if magic != MAGIC or position + length != len(data):
        raise ValueError("the file is not complete")
    encoded = data[position : position + length]
    if hashlib.sha256(encoded).digest() != checksum:
        raise ValueError("its table does not have the right checksum")
    table = msgspec.msgpack.decode(encoded, type=_Table)
    if table.key != key:
        raise ValueError("it belongs to another model")
    content = np.frombuffer(data, np.uint8)
    parameters: dict[str, LoadedParameter] = {}
    for name in table.order:
        if name in table.vectors:
            parameters[name] = _view(content, table.vectors[name], position).view(np.float32)
        else:
            parameters[name] = tuple(
                _part(content, part, position) for part in table.matrices[name]
            )
    with suppress(OSError):
        data.madvise(mmap.MADV_WILLNEED)  # start reading ahead; do not wait for it
    return LoadedWeights(parameters, table.digest, is_mapped=True)


def _part(content: NDArray[np.uint8], part: _Part, end: int) -> PackedPart:
    weight = PackedWeight(
        part.format,
        part.num_outputs,
        part.num_inputs,
        part.has_mins,
        part.code_offset,
        _view(content, part.array, end),
    )
    return PackedPart(weight, part.first_column)


def _view(content: NDArray[np.uint8], array: _Array, end: int) -> NDArray[np.uint8]:
    if array.offset < PAGE or array.offset % ALIGNMENT or array.offset + array.nbytes > end:
        raise ValueError("an array lies outside the file")
    view = content[array.offset : array.offset + array.nbytes]
    if zlib.crc32(view[:SAMPLE_BYTES].data) != array.sample:
        raise ValueError("an array does not have the right checksum")
    return view


# ---- writing -----------------------------------------------------------------------------------


class EntryWriter:
    """Writes one entry, a parameter at a time. Leaves nothing behind unless `finish` succeeded."""

    def __init__(self, directory: Path, key: CacheKey) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._key = key
        self._vectors: dict[str, _Array] = {}
        self._matrices: dict[str, tuple[_Part, ...]] = {}
        self._order: list[str] = []
        self._path = directory / f".{key.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp"
        self._file: BinaryIO = self._path.open("xb")
        # The lock tells `_trim` of other processes that someone is still writing.
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._file.write(b"\0" * PAGE)

    def __enter__(self) -> "EntryWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        with suppress(OSError):  # closing flushes, which may find the disk full once more
            self._file.close()

    def add(self, name: str, parameter: LoadedParameter) -> None:
        """Append one parameter's arrays. Raises OSError when the disk does not take them."""
        self._order.append(name)
        if not isinstance(parameter, tuple):
            self._vectors[name] = self._append(parameter.view(np.uint8))
            return
        self._matrices[name] = tuple(
            _Part(
                self._append(part.weight.data),
                part.first_column,
                part.weight.format,
                part.weight.num_outputs,
                part.weight.num_inputs,
                part.weight.has_mins,
                part.weight.offset,
            )
            for part in parameter
        )

    def finish(self, digest: str) -> None:
        """Write the table, make the file durable, and put it in its place."""
        position = self._file.tell()
        table = _Table(self._key, digest, self._vectors, self._matrices, tuple(self._order))
        encoded = msgspec.msgpack.encode(table)
        self._file.write(encoded)
        self._file.seek(0)
        checksum = hashlib.sha256(encoded).digest()
        self._file.write(_PREFIX.pack(MAGIC, position, len(encoded), checksum))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._path.rename(self._directory / self._key.name)
        _sync_directory(self._directory)
        _trim(self._directory, keep=self._key.name)

    def _append(self, data: NDArray[np.uint8]) -> _Array:
        offset = -(-self._file.tell() // ALIGNMENT) * ALIGNMENT
        self._file.seek(offset)
        content = np.ascontiguousarray(data)
        self._file.write(content.data)
        return _Array(offset, content.nbytes, zlib.crc32(content[:SAMPLE_BYTES].data))


def has_room(directory: Path, nbytes: int) -> bool:
    """The disk can take an entry of about this size."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    stats = os.statvfs(existing)
    return stats.f_bavail * stats.f_frsize > nbytes + DISK_MARGIN_BYTES


def _sync_directory(directory: Path) -> None:
    """Make the rename durable where the file system can."""
    with suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _trim(directory: Path, *, keep: str) -> None:
    """Remove what crashed writers left, and the entries used least recently beyond the bound."""
    for path in directory.glob(f".*{SUFFIX}.*.tmp"):
        _remove_if_abandoned(path)
    entries = []
    for path in directory.glob(f"*{SUFFIX}"):
        with suppress(OSError):
            stats = path.stat()
            entries.append((stats.st_mtime_ns, stats.st_size, path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= MAX_CACHE_BYTES:
            return
        if path.name != keep:
            with suppress(OSError):
                path.unlink()
                total -= size


def _remove_if_abandoned(path: Path) -> None:
    with suppress(OSError), path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
