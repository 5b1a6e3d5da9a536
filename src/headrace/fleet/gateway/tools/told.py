"""A stream of events to a client that begins with the first thing to be told."""

import msgspec

from headrace.core.errors import HeadraceError
from headrace.fleet.gateway.inner import InnerAnswer
from headrace.web.asgi import Message, Send, send_body
from headrace.web.problems import answer_to
from headrace.web.streaming import CONTENT_TYPE, DONE, event


class ToldStream:
    """Until then its status may be another."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._has_begun = False
        self._is_over = False

    async def tell(self, data: bytes) -> None:
        """Events."""
        if not self._has_begun:
            self._has_begun = True
            headers = [(b"content-type", CONTENT_TYPE.encode()), (b"cache-control", b"no-cache")]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    @property
    def has_begun(self) -> bool:
        """Its client has a status."""
        return self._has_begun

    @property
    def is_over(self) -> bool:
        """All has been told."""
        return self._is_over

    async def pass_on(self, message: Message) -> None:
        """A message of a whole answer that somebody else tells."""
        self._has_begun = True
        is_end = message["type"] == "http.response.body" and not message.get("more_body")
        await self._send(message)
        self._is_over = is_end

    async def end(self, data: bytes) -> None:
        """Last events, and the end."""
        await self.tell(data)
        await self._send({"type": "http.response.body", "body": b""})
        self._is_over = True

    async def refuse(self, answer: InnerAnswer) -> None:
        """A round was refused: with its status if nothing was told, else with an event."""
        if not self._has_begun:
            await send_body(self._send, answer.body, status=answer.status)
        else:
            await self.end(b"data: " + answer.body.replace(b"\n", b" ") + b"\n\n" + DONE)

    async def break_off(self, error: HeadraceError) -> None:
        """A round failed: raised again if nothing was told, else an event."""
        if not self._has_begun:
            raise error
        await self.end(event(msgspec.json.encode({"error": answer_to(error).problem})) + DONE)
