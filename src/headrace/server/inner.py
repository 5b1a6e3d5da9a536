"""Requests that do not come over a connection of their own: lines of batches, messages of sockets, calls of gRPC.

They are ordinary requests to the ordinary routes, below the layer that looks for keys: whoever makes one says
whose it is. So there is one path of every endpoint, with its bounds, its errors and its metrics.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from headrace.web.asgi import App, Message, Scope
from headrace.web.guard import KEY
from headrace.web.keys import Key

#: Where a scope says that the request is one that nobody waits for.
BACKGROUND = "headrace.background"
INNER = "headrace.inner"
#: Takes one message of the answer.
Deliver = Callable[[Message], Awaitable[None]]


class InnerAnswer(Struct, frozen=True):
    """A whole answer."""

    status: int
    headers: dict[str, str]
    body: bytes


class InnerRequest:
    """A JSON body for a path. Cancelling the task that runs it ends it, and frees its blocks."""

    def __init__(
        self,
        path: str,
        body: bytes,
        key: Key | None,
        *,
        name: str,
        is_background: bool = False,
        verb: str = "POST",
        client: tuple[str, int] | None = None,
    ) -> None:
        """`name` is its `x-request-id`, one that is no good is replaced; `client` is who asks, for the log."""
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"x-request-id", name.encode("latin-1", "replace")),
        ]
        self._scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": verb,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": headers,
            "client": client,
            "server": None,
            INNER: True,
            BACKGROUND: is_background,
        }
        if key is not None:
            self._scope[KEY] = key
        self._body: bytes | None = body
        self._gone = asyncio.Event()

    @property
    def is_gone(self) -> bool:
        """Nobody waits for the answer any more."""
        return self._gone.is_set()

    def leave(self) -> None:
        """Nobody waits for the answer any more: it ends as if a connection had been closed."""
        self._gone.set()

    async def run(self, app: App, deliver: Deliver) -> None:
        """Have it answered, message by message; returns when the answer has ended."""
        await app(self._scope, self._receive, deliver)

    async def whole(self, app: App) -> InnerAnswer:
        """The answer in one piece."""
        status, headers, parts = 500, dict[str, str](), list[bytes]()

        async def collect(message: Message) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in message["headers"]}
            else:
                parts.append(message.get("body", b""))

        await self.run(app, collect)
        return InnerAnswer(status, headers, b"".join(parts))

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}


def is_inner(scope: Scope) -> bool:
    """It has no connection of its own that could break."""
    return INNER in scope


def is_background(scope: Scope) -> bool:
    """Nobody waits for the answer: it runs when there is nothing else to do."""
    return bool(scope.get(BACKGROUND))
