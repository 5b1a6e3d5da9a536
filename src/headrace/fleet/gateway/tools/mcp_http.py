"""HTTP for the `mcp` package, with bounds that it does not have: on the size of an answer, and on the time that one takes.

The package reads answers that are no stream whole, and leaves a request of an older revision of the protocol open when nobody
waits for it any more.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from math import inf
from typing import Any

import httpx2
from mcp.client.streamable_http import streamable_http_client

from headrace.config.fleet.tools import McpServer
from headrace.fleet.gateway.tools.values import too_long


class AnswerError(httpx2.SSEError, httpx2.StreamError):
    """An answer that is not read on. The package tells it to whoever called, for a stream and for JSON, and goes on."""


class BoundedClient(httpx2.AsyncClient):
    """Its answers end at their bounds, all but the stream that a server keeps open for news (a GET)."""

    def __init__(self, *, max_bytes: int, patience: float, **options: Any) -> None:
        """`patience` is seconds for one answer in all."""
        super().__init__(**options)
        self._max_bytes = max_bytes
        self._patience = patience

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Part of AsyncClient."""
        # What is packed may be as large as it likes when it is unpacked.
        request.headers["accept-encoding"] = "identity"
        if request.method == "GET":
            found: httpx2.Response = await super().send(request, **options)
            is_stream = found.headers.get("content-type", "").startswith("text/event-stream")
            return self._bounded(found, None if is_stream else self._deadline())
        deadline = self._deadline()
        try:
            async with asyncio.timeout_at(deadline):
                found = await super().send(request, **options)
        except TimeoutError:
            # Raised, it would end the connection, and with it the calls of others.
            return httpx2.Response(504, request=request)
        return self._bounded(found, deadline)

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._patience

    def _bounded(self, response: httpx2.Response, deadline: float | None) -> httpx2.Response:
        """No deadline: it may go on, event after event."""
        max_bytes = self._max_bytes if deadline is not None else inf
        is_packed = response.headers.get("content-encoding", "identity").lower() != "identity"
        response.stream = _Body(response.stream, max_bytes, deadline, is_packed=is_packed)
        return response


class _Body(httpx2.AsyncByteStream):
    """The body of an answer, up to its bounds."""

    def __init__(
        self, stream: Any, max_bytes: float, deadline: float | None, *, is_packed: bool
    ) -> None:
        self._stream = stream
        self._max_bytes = max_bytes
        self._deadline = deadline
        self._is_packed = is_packed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._is_packed:
            raise AnswerError("The answer is packed, which was not asked for.")
        num_bytes = 0
        parts = aiter(self._stream)
        while True:
            try:
                async with asyncio.timeout_at(self._deadline):
                    part = await anext(parts, None)
            except TimeoutError:
                raise AnswerError("The answer took too long.") from None
            if part is None:
                return
            num_bytes += len(part)
            if num_bytes > self._max_bytes:
                raise AnswerError(too_long(int(self._max_bytes)))
            yield part

    async def aclose(self) -> None:
        """Part of AsyncByteStream."""
        await self._stream.aclose()


def open_client(server: McpServer, max_bytes: int, patience: float) -> BoundedClient:
    """For one server; `async with` ends it."""
    headers = {name: str(value) for name, value in server.headers.items()}
    times = httpx2.Timeout(server.timeout, read=None)  # its streams may be silent for long
    return BoundedClient(max_bytes=max_bytes, patience=patience, headers=headers, timeout=times)


def transport_of(
    server: McpServer, client: BoundedClient, max_bytes: int
) -> AbstractAsyncContextManager[Any]:
    """What the package connects to. An event of a stream is bounded as an answer is."""
    assert server.url is not None
    transport: AbstractAsyncContextManager[Any] = streamable_http_client(
        server.url, http_client=client, max_sse_event_size=max_bytes
    )
    return transport
