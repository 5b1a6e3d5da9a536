"""Writes the head of an answer together with what follows it: one system call, and one packet, instead of two."""

import asyncio
from typing import Any, Final

#: A body from this size on is written behind the head: to join them would copy it.
MAX_JOINED: Final = 64 * 1024


class JoinedWrites:
    """What one answer is written to: a transport that keeps its first piece until the second, or until the loop turns."""

    __slots__ = ("_head", "_is_first", "_loop", "_transport")

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        """`transport` is an `asyncio.Transport`, or has its methods."""
        self._transport = transport
        self._loop = loop
        self._is_first = True
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        """Part of asyncio's transports."""
        if self._is_first:
            self._is_first = False
            self._head = data
            self._loop.call_soon(self._flush)
            return
        head, self._head = self._head, None
        if head is not None:
            if len(data) > MAX_JOINED:
                self._transport.write(head)
            else:
                data = head + data
        self._transport.write(data)

    def close(self) -> None:
        """Part of asyncio's transports: what was written leaves first."""
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Part of asyncio's transports."""
        closing: bool = self._transport.is_closing()
        return closing

    def _flush(self) -> None:
        head, self._head = self._head, None
        if head is not None and not self._transport.is_closing():
            self._transport.write(head)
