"""An HTTP server that answers what a test wants, for the gateway to stand in front of."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple


class Reply(NamedTuple):
    """An answer; in chunks, so that a stream may be seen to come in pieces."""

    body: bytes | list[bytes]
    status: int = 200
    content_type: str = "application/json"
    is_cut: bool = False
    """The connection breaks behind the last chunk."""


Handler = Callable[[str, bytes], Reply]


class StubReplica:
    """Counts what it is asked. `gate` holds every POST back while it is not set."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.posts: list[tuple[str, bytes]] = []
        self.num_left = 0
        """Clients that left before they had all."""
        self.gate = asyncio.Event()
        self.gate.set()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                line, *lines = head.strip().split("\r\n")
                headers = {k.lower(): v for k, v in (part.split(": ", 1) for part in lines)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                method, path, _ = line.split(" ")
                if method == "POST":
                    self.posts.append((path, body))
                    await self._held(reader)
                await self._answer(writer, self.handler(path, body))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client or the test has ended
        finally:
            writer.close()

    async def _held(self, reader: asyncio.StreamReader) -> None:
        if self.gate.is_set():
            return
        opened = asyncio.ensure_future(self.gate.wait())
        left = asyncio.ensure_future(reader.read(1))
        await asyncio.wait((opened, left), return_when=asyncio.FIRST_COMPLETED)
        opened.cancel()
        if left.done():
            self.num_left += 1
            raise ConnectionError
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)

    async def _answer(self, writer: asyncio.StreamWriter, reply: Reply) -> None:
        chunks = reply.body if isinstance(reply.body, list) else [reply.body]
        head = f"HTTP/1.1 {reply.status} X\r\ncontent-type: {reply.content_type}\r\n"
        writer.write(head.encode() + b"transfer-encoding: chunked\r\n\r\n")
        for chunk in chunks:
            writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            await writer.drain()
        if reply.is_cut:
            raise ConnectionError
        writer.write(b"0\r\n\r\n")
        await writer.drain()


@asynccontextmanager
async def stub_replica(handler: Handler) -> AsyncIterator[StubReplica]:
    """Runs until the block ends."""
    stub = StubReplica(handler)
    server = await asyncio.start_server(stub.serve, "127.0.0.1", 0)
    stub.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield stub
