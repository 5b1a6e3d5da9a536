"""A TCP server for tests that can end at any moment, as a process that is killed does.

asyncio's own leaks what it accepts while it is closed (3.11: an assertion in the transport's constructor).
"""

import asyncio
import functools
import socket
from collections.abc import Awaitable, Callable

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Listener:
    """Listens from `start` to `kill`; may be started again, on the same port."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.port = 0

    @property
    def num_connections(self) -> int:
        """Those whose handler has not ended."""
        return len(self._tasks)

    async def start(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", self.port), backlog=1000)
        self._socket.setblocking(False)
        self.port = self._socket.getsockname()[1]
        self._accepting = asyncio.create_task(self._accept(self._socket), name="accepting")

    async def kill(self) -> None:
        """Every connection is ended, and new ones are refused."""
        if self._accepting is None or self._socket is None:
            return
        self._accepting.cancel()
        await asyncio.wait({self._accepting})
        self._socket.close()
        tasks = list(self._tasks)
        for task in tasks:
            self._tasks[task].transport.abort()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # sockets are closed in the loop's next round

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            accepted, _ = await loop.sock_accept(listener)
            reader = asyncio.StreamReader()
            transport, protocol = await loop.connect_accepted_socket(
                functools.partial(asyncio.StreamReaderProtocol, reader), accepted
            )
            writer = asyncio.StreamWriter(transport, protocol, reader, loop)
            task = asyncio.create_task(self._handle(reader, writer), name="connection")
            self._tasks[task] = writer
            task.add_done_callback(self._tasks.pop)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
