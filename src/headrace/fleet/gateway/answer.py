"""One answer on its way to one client: begun once, whoever works on it."""

import asyncio
from collections.abc import Mapping

from headrace.core.clock import Clock
from headrace.fleet.backends import values as wire
from headrace.fleet.cache.flights import USAGE
from headrace.fleet.gateway.progress import AnswerUsage
from headrace.fleet.upstream.failure import FailureKind, UpstreamError
from headrace.web.asgi import Send, start_message
from headrace.web.error_shapes import broken_stream
from headrace.web.problems import answer_to
from headrace.web.streaming import CONTENT_TYPE

#: Headers of a replica's answer that the client gets too.
PASSED_ON = (b"content-type", b"retry-after", b"x-headrace-seed", b"x-headrace-ignored-fields")
_STREAM = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class Answer:
    """Writes the response. What the status and headers are is open until the first byte."""

    def __init__(self, send: Send, clock: Clock) -> None:
        self._send = send
        self._clock = clock
        self.began_at: float | None = None
        """`Clock.monotonic` of its first byte."""
        self._owner: object = None
        self.begun = asyncio.Event()
        self.status = 200
        """Of what was sent."""
        self._is_stream = False
        self.is_broken = False
        """It ended with an error in its middle."""
        self.headers: dict[str, str] = {}
        """Of the gateway itself, such as x-headrace-route; put in before it begins."""

    @property
    def has_begun(self) -> bool:
        """The client has a status."""
        return self.begun.is_set()

    def claim(self, owner: object, route: str) -> None:
        """`owner` writes from now on, and nobody else. Raises UpstreamError if somebody else does already."""
        if self._owner is None:
            self._owner = owner
            self.headers["x-headrace-route"] = route
        elif self._owner is not owner:
            raise UpstreamError(FailureKind.SUPERSEDED, "another replica was faster")

    def is_owned_by(self, owner: object) -> bool:
        """What the client has is its."""
        return self._owner is owner

    async def whole(
        self,
        status: int,
        headers: Mapping[bytes, bytes],
        body: bytes,
        usage: AnswerUsage | None = None,
    ) -> None:
        """A replica's whole answer, passed on; what it cost goes to whoever hears it."""
        self._begin()
        self.status = status
        passed = {
            name.decode(): headers[name].decode("latin-1")
            for name in PASSED_ON[1:]
            if name in headers
        }
        content_type = headers.get(b"content-type", b"application/json").decode("latin-1")
        length = {"content-length": str(len(body))}
        await self._send(start_message(status, content_type, length, passed, self.headers))
        message: dict[str, object] = {"type": "http.response.body", "body": body}
        if usage is not None:
            message[USAGE] = usage.as_openai()
        await self._send(message)

    async def refused(self, refusal: wire.Refusal) -> None:
        """What a replica says against the request."""
        headers = {b"content-type": b"application/json"}
        await self.whole(refusal.status, headers, refusal.body)

    async def write(self, events: bytes) -> None:
        """Events of a stream."""
        if not self.has_begun:
            self._begin()
            self._is_stream = True
            await self._send(start_message(200, CONTENT_TYPE, _STREAM, self.headers))
        await self._send({"type": "http.response.body", "body": events, "more_body": True})

    async def end(self, usage: AnswerUsage | None = None) -> None:
        """A stream is complete. What it cost goes to whoever hears it, whether the client wanted to know or not."""
        message: dict[str, object] = {"type": "http.response.body", "body": b""}
        if usage is not None:
            message[USAGE] = usage.as_openai()
        await self._send(message)

    def _begin(self) -> None:
        self.begun.set()
        self.began_at = self._clock.monotonic()

    async def break_off(self, error: Exception, path: str, num_events: int) -> None:
        """A stream ends with an error: said in an event, since the status has gone out."""
        self.is_broken = True
        if not self._is_stream:
            return  # a whole answer has gone out at once; only its reader is slow
        await self.write(broken_stream(path, answer_to(error), num_events))
        await self.end()
