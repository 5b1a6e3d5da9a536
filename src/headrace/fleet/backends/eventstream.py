"""AWS's binary event stream: frames with two checksums, read byte by byte.

Written from the specification (Smithy 2.0, "Amazon Event Stream"): big endian; total length (4), length of the headers (4),
CRC32 of these eight bytes (4), headers, payload, CRC32 of all before (4). A header is the length of its name (1), the name,
a type (1) and a value.
"""

import struct
import zlib
from typing import Final

from msgspec import Struct

from headrace.fleet.sse import StreamError

_PRELUDE: Final = struct.Struct(">III")
_CRC: Final = struct.Struct(">I")
#: The specification's bounds: 16 MiB of payload, 128 KiB of headers.
_MAX_FRAME: Final = 16 * 1024 * 1024 + 128 * 1024 + 16
#: Type of a header's value → its length; 6 and 7 (bytes and text) have two bytes of length before them.
_LENGTHS: Final = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}


class Frame(Struct, frozen=True):
    """One message. Only headers with text are kept."""

    headers: dict[str, str]
    payload: bytes


class FrameParser:
    """Takes chunks, gives frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def is_idle(self) -> bool:
        """No frame has begun."""
        return not self._buffer

    def feed(self, chunk: bytes) -> list[Frame]:
        """Frames that end in `chunk`. Raises StreamError for what is none."""
        self._buffer += chunk
        frames: list[Frame] = []
        while len(self._buffer) >= _PRELUDE.size:
            total, header_length, crc = _PRELUDE.unpack_from(self._buffer)
            if crc != zlib.crc32(self._buffer[:8]):
                raise StreamError("A frame of the event stream has a wrong checksum.")
            if not 16 + header_length <= total <= _MAX_FRAME:
                raise StreamError("A frame of the event stream has an impossible length.")
            if len(self._buffer) < total:
                break
            frame = bytes(self._buffer[:total])
            del self._buffer[:total]
            if _CRC.unpack_from(frame, total - 4)[0] != zlib.crc32(frame[:-4]):
                raise StreamError("A frame of the event stream has a wrong checksum.")
            body = 12 + header_length
            frames.append(Frame(_headers(frame[12:body]), frame[body:-4]))
        return frames


def frame(headers: dict[str, str], payload: bytes) -> bytes:
    """A message as bytes: for servers, and for tests of the other half."""
    lines = b"".join(
        bytes((len(name),))
        + name.encode()
        + b"\x07"
        + len(value).to_bytes(2, "big")
        + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack(">II", 16 + len(lines) + len(payload), len(lines))
    message = prelude + _CRC.pack(zlib.crc32(prelude)) + lines + payload
    return message + _CRC.pack(zlib.crc32(message))


def _headers(data: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    at = 0
    try:
        while at < len(data):
            end = at + 1 + data[at]
            name, kind = data[at + 1 : end].decode(), data[end]
            at = end + 1
            if kind in (6, 7):
                length = int.from_bytes(data[at : at + 2], "big")
                at += 2
                if kind == 7:
                    found[name] = data[at : at + length].decode()
            else:
                length = _LENGTHS[kind]
            at += length
    except (IndexError, KeyError, UnicodeDecodeError):
        at = -1
    if at != len(data):
        raise StreamError("The headers of a frame of the event stream cannot be read.")
    return found
