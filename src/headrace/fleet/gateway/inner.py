"""Answers to requests that the gateway makes itself, in one piece."""

from msgspec import Struct

from headrace.web.asgi import Message


class InnerAnswer(Struct, frozen=True):
    """A whole answer; `body` is what a client would have got."""

    status: int
    body: bytes


class Sink:
    """Takes the messages of one answer."""

    def __init__(self) -> None:
        self._status = 500
        self._parts: list[bytes] = []

    async def send(self, message: Message) -> None:
        """ASGI."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
        else:
            self._parts.append(message.get("body", b""))

    def answer(self) -> InnerAnswer:
        """All that came."""
        return InnerAnswer(self._status, b"".join(self._parts))
