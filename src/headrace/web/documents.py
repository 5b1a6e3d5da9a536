"""`GET /openapi.json` and `GET /docs`: made when they are first asked for, and then kept."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headrace.web.asgi import App, Receive, Scope, Send, send_body
from headrace.web.endpoint import Endpoint, Operation

OPENAPI = Operation(
    summary="This API as an OpenAPI document", tag="documents", response=dict[str, Any]
)
PAGE = Operation(
    summary="This API as a page to read", tag="documents", content_type="text/html; charset=utf-8"
)
#: The page may load and run nothing.
SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"


class Documents:
    """What the routes of one server say of themselves."""

    def __init__(self, routes: Callable[[], Sequence[Endpoint]], about: str) -> None:
        """`routes` is called when a document is first asked for; `about` is a sentence on them all."""
        self._routes = routes
        self._about = about
        self._made: tuple[bytes, bytes] | None = None

    def openapi(self) -> App:
        """JSON."""

        async def respond(_scope: Scope, _receive: Receive, send: Send) -> None:
            await send_body(send, (await self._get())[0])

        return respond

    def page(self) -> App:
        """HTML."""
        headers = {"content-security-policy": SECURITY_POLICY, "x-content-type-options": "nosniff"}

        async def respond(_scope: Scope, _receive: Receive, send: Send) -> None:
            body = (await self._get())[1]
            await send_body(send, body, content_type=PAGE.content_type, headers=headers)

        return respond

    async def _get(self) -> tuple[bytes, bytes]:
        if self._made is None:
            self._made = await asyncio.to_thread(self._make)
        return self._made

    def _make(self) -> tuple[bytes, bytes]:
        from headrace.web.docs_page import page
        from headrace.web.openapi import document

        made = document(self._routes(), self._about)
        return msgspec.json.encode(made), page(made).encode()
