"""Length-prefixed frames over a local stream socket, and the engine's end of it.

A frame is a 32-bit little-endian length and that many bytes. Both directions are bounded: a frame that
is too long, or an outbox that the other side does not empty, ends the connection.
"""

import socket

from headrace.core.errors import InternalError

HEADER_BYTES = 4
#: A prompt of four million tokens takes 20 MB as msgpack; 64 MiB leaves room and still bounds a peer.
MAX_FRAME_BYTES = 64 * 1024 * 1024
#: Bytes that may wait for a peer that does not read.
MAX_OUTBOX_BYTES = 64 * 1024 * 1024
_RECEIVE_BYTES = 256 * 1024


class ChannelError(InternalError):
    """The other side broke the framing, or does not read."""


class FrameReader:
    """Bytes in, whole frames out. Keeps what is incomplete."""

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._buffer = bytearray()
        self._max_frame_bytes = max_frame_bytes

    def feed(self, data: bytes) -> list[bytes]:
        """All frames that `data` completes. Raises ChannelError for a frame that is too long."""
        self._buffer += data
        frames = []
        start = 0
        while len(self._buffer) - start >= HEADER_BYTES:
            body = start + HEADER_BYTES
            length = int.from_bytes(self._buffer[start:body], "little")
            if length > self._max_frame_bytes:
                raise ChannelError(f"A frame of {length} bytes is longer than the limit.")
            if len(self._buffer) - body < length:
                break
            frames.append(bytes(self._buffer[body : body + length]))
            start = body + length
        if start:
            del self._buffer[:start]
        return frames


def frame(payload: bytes) -> bytes:
    """A payload with its length in front. Raises ChannelError when it is too long."""
    if len(payload) > MAX_FRAME_BYTES:
        raise ChannelError(f"A message of {len(payload)} bytes is longer than a frame may be.")
    return len(payload).to_bytes(HEADER_BYTES, "little") + payload


class BlockingChannel:
    """The engine's end: a non-blocking socket in somebody's selector, read and written on one thread."""

    def __init__(self, sock: socket.socket, *, max_outbox_bytes: int = MAX_OUTBOX_BYTES) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._reader = FrameReader()
        self._outbox = bytearray()
        self._max_outbox_bytes = max_outbox_bytes

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    @property
    def has_outbox(self) -> bool:
        """Bytes wait until the socket can be written."""
        return bool(self._outbox)

    def receive(self) -> list[bytes] | None:
        """Frames that are complete now, or None at the end of the stream."""
        frames: list[bytes] = []
        while True:
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return frames
            except OSError:
                return None
            if not data:
                # Frames before the end still count; the end is seen by the next call.
                return frames or None
            frames += self._reader.feed(data)
            if len(data) < _RECEIVE_BYTES:
                return frames

    def send(self, payload: bytes) -> None:
        """Write now what the socket takes, keep the rest. Raises ChannelError when it is gone or full."""
        self._outbox += frame(payload)
        self.flush()
        if len(self._outbox) > self._max_outbox_bytes:
            raise ChannelError("The other side does not read.")

    def flush(self) -> None:
        """Write what waits, as far as the socket takes it. Raises ChannelError when it is gone."""
        while self._outbox:
            try:
                sent = self._socket.send(self._outbox)
            except BlockingIOError:
                return
            except OSError as error:
                raise ChannelError(f"The other side is gone: {error}.") from None
            del self._outbox[:sent]

    def close(self) -> None:
        """Close the socket; what waits is dropped."""
        self._socket.close()
