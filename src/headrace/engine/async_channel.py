"""The server's end of a channel, in an event loop.

Apart from `channel`, so that an engine process never imports asyncio.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from headrace.engine.channel import MAX_OUTBOX_BYTES, ChannelError, FrameReader, frame


class AsyncChannel(asyncio.Protocol):
    """`on_frames` gets every batch of frames, `closed` ends with the stream."""

    def __init__(self, on_frames: Callable[[list[bytes]], None]) -> None:
        self._on_frames = on_frames
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def attach(self, sock: socket.socket) -> None:
        """To a connected socket, which the channel then owns. Frames may come, and be sent, before this returns."""
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self, sock=sock)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of asyncio.Protocol."""
        # A cast, not a check: uvloop's transports are not derived from asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Part of asyncio.Protocol."""
        try:
            frames = self._reader.feed(data)
        except ChannelError:
            self.abort()
            return
        if frames:
            self._on_frames(frames)

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of asyncio.Protocol."""
        self._transport = None
        if not self.closed.done():
            self.closed.set_result(None)

    def send(self, payload: bytes) -> None:
        """Queue a frame. Raises ChannelError when the other side is gone or does not read."""
        if self._transport is None or self._transport.is_closing():
            raise ChannelError("The other side is gone.")
        if self._transport.get_write_buffer_size() > MAX_OUTBOX_BYTES:
            raise ChannelError("The other side does not read.")
        self._transport.write(frame(payload))

    def abort(self) -> None:
        """Drop the connection now."""
        if self._transport is not None:
            self._transport.abort()
