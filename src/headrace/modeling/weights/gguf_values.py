"""Values in a GGUF header: how each kind is read, skipped and bounded."""

import mmap
import struct
from array import array
from typing import Any, Final

from headrace.core.errors import ModelLoadError

#: Elements of one array. The largest vocabularies have a quarter of a million.
MAX_ARRAY_LENGTH: Final = 1 << 24
#: Bytes of a key or tensor name, as the specification has it.
MAX_NAME_BYTES: Final = 65_535

BOOL, STRING, ARRAY = 7, 8, 9
#: value type -> struct and array code, little endian.
_CODES: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}  # fmt: skip
_SIZES: Final = {kind: struct.calcsize(f"<{code}") for kind, code in _CODES.items()}
_U32: Final = struct.Struct("<I").unpack_from
_U64: Final = struct.Struct("<Q").unpack_from


class HeaderCursor:
    """A position in a mapped file. Reading past the end raises struct.error or ModelLoadError."""

    def __init__(self, data: mmap.mmap, file_name: str) -> None:
        self.data = data
        self.size = len(data)
        self.file_name = file_name
        self.position = 0

    def u32(self) -> int:
        (value,) = _U32(self.data, self.position)
        self.position += 4
        return int(value)

    def u64(self) -> int:
        (value,) = _U64(self.data, self.position)
        self.position += 8
        return int(value)

    def name(self) -> str:
        """A key or tensor name, which must be UTF-8."""
        length = self.u64()
        if length > MAX_NAME_BYTES:
            raise ModelLoadError(f"{self.file_name} has a name of {length} bytes in its header.")
        self.require_room(length, 1, "names")
        raw = self.data[self.position : self.position + length]
        self.position += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ModelLoadError(f"{self.file_name} has a name that is not UTF-8.") from error

    def require_room(self, count: int, size: int, what: str) -> None:
        """The rest of the file can hold `count` things of at least `size` bytes."""
        if count * size > self.size - self.position:
            raise ModelLoadError(
                f"{self.file_name} is cut off or damaged: it is too short for the {what} it announces."
            )

    def skip_value(self, value_type: int) -> None:
        """Move behind a value, checking its bounds."""
        if value_type == STRING:
            self._skip_strings(1)
        elif value_type == ARRAY:
            element_type, length = self.u32(), self.u64()
            self._skip_array(element_type, length)
        else:
            size = self._size_of(value_type)
            self.require_room(1, size, "values")
            self.position += size

    def _skip_array(self, element_type: int, length: int) -> None:
        if length > MAX_ARRAY_LENGTH:
            raise ModelLoadError(f"{self.file_name} has an array of {length} elements.")
        if element_type == STRING:
            self.require_room(length, 8, "strings")
            self._skip_strings(length)
            return
        size = self._size_of(element_type)
        self.require_room(length, size, "values")
        self.position += length * size

    def _skip_strings(self, count: int) -> None:
        """The loop runs for every token of the vocabulary; `unpack` itself stops at the file's end."""
        data, position, unpack = self.data, self.position, _U64
        for _ in range(count):
            position += 8 + unpack(data, position)[0]
        if position > self.size:
            raise ModelLoadError(f"{self.file_name} is cut off or damaged inside a string.")
        self.position = position

    def _size_of(self, value_type: int) -> int:
        size = _SIZES.get(value_type)
        if size is None:
            raise ModelLoadError(f"{self.file_name} has metadata of unknown type {value_type}.")
        return size


def decode_value(cursor: HeaderCursor, value_type: int, position: int) -> Any:
    """The value at `position`, which `skip_value` has checked: int, float, bool, str or a list."""
    data = cursor.data
    if value_type == STRING:
        return _strings(data, position, 1)[0]
    if value_type == ARRAY:
        (element_type,), (length,) = _U32(data, position), _U64(data, position + 4)
        return _decode_array(data, element_type, length, position + 12)
    (value,) = struct.unpack_from(f"<{_CODES[value_type]}", data, position)
    return bool(value) if value_type == BOOL else value


def _decode_array(data: mmap.mmap, element_type: int, length: int, position: int) -> list[Any]:
    if element_type == STRING:
        return _strings(data, position, length)
    values = array(_CODES[element_type])
    values.frombytes(data[position : position + length * _SIZES[element_type]])
    return [value != 0 for value in values] if element_type == BOOL else values.tolist()


def _strings(data: mmap.mmap, position: int, count: int) -> list[str]:
    """Bytes that are not UTF-8 become U+FFFD: some old vocabularies hold halves of characters."""
    strings: list[str] = []
    append, unpack = strings.append, _U64
    for _ in range(count):
        (length,) = unpack(data, position)
        position += 8 + length
        append(data[position - length : position].decode("utf-8", "replace"))
    return strings
