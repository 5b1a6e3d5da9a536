"""A TCP server for tests that can end at any moment, as a process that is killed does.

asyncio's own leaks what it accepts while it is closed (3.11: an assertion in the transport's constructor).
"""

import asyncio
import contextlib
import functools
import json
import socket
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

from tests.support.ports import hold

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Listener:
    """Listens from `start` to `kill`; may be started again, on the same port."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._socket: socket.socket | None = None
        self._accepted: dict[asyncio.Task[None], socket.socket] = {}
        self._writers: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.port = 0

    @property
    def num_connections(self) -> int:
        """Those whose handler has not ended."""
        return len(self._accepted)

    async def start(self) -> None:
        if not self.port:
            held = hold()
            weakref.finalize(self, held.close)
            self.port = held.getsockname()[1]
        self._socket = socket.create_server(("127.0.0.1", self.port), backlog=1000)
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket, self._accept)

    async def kill(self) -> None:
        """Every connection is ended, and new ones are refused."""
        if self._socket is None:
            return
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._socket = None
        tasks = dict(self._accepted)
        for task in tasks:
            if (writer := self._writers.get(task)) is not None:
                writer.transport.abort()
            task.cancel()
        begun = set(self._writers)
        await asyncio.gather(*tasks, return_exceptions=True)
        for task, accepted in tasks.items():
            if task not in begun:
                accepted.close()
        await asyncio.sleep(0)  # sockets are closed in the loop's next round

    def _accept(self) -> None:
        assert self._socket is not None
        with contextlib.suppress(BlockingIOError, ConnectionError):
            accepted, _ = self._socket.accept()
            accepted.setblocking(False)
            task = asyncio.create_task(self._handle(accepted), name="connection")
            self._accepted[task] = accepted
            task.add_done_callback(self._accepted.pop)

    async def _handle(self, accepted: socket.socket) -> None:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        transport, protocol = await loop.connect_accepted_socket(
            functools.partial(asyncio.StreamReaderProtocol, reader), accepted
        )
        writer = self._writers[task] = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            await self._handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            del self._writers[task]


async def until_eof(reader: asyncio.StreamReader) -> None:
    while True:
        if reader.at_eof():
            return
        await asyncio.sleep(0.005)


async def send_json(
    writer: asyncio.StreamWriter, status: int, value: Any, extra: dict[str, str] | None = None
) -> None:
    body = json.dumps(value).encode()
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        **(extra or {}),
    }
    lines = "".join(f"{k}: {v}\r\n" for k, v in headers.items())
    writer.write(f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode() + body)
    await writer.drain()
