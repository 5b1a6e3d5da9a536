"""One HTTP/1.1 connection to a replica, and the answer that comes over it.

The framing is llhttp's (httptools). An exchange has one timer: it looks at a deadline that each piece of the
answer moves, so that a token costs no timer of its own.
"""

import asyncio
from typing import Final, cast

import httptools

from headrace.fleet.upstream.failure import FailureKind, UpstreamError

#: Bytes of an answer without a byte of its body between them: its headers, and how its pieces are framed.
MAX_HEADER_BYTES: Final = 64 * 1024
_LONG_HEADERS: Final = f"more than {MAX_HEADER_BYTES} bytes of headers"
_CLOSED: Final = "the replica closed the connection"


class Response:
    """The answer to one request, while it comes. Read it to its end, or `abort` it."""

    __slots__ = (
        "_ended", "_failure", "_max_buffer", "_parts", "_size", "_waiter", "connection", "headers",
        "is_paused", "status",
    )  # fmt: skip

    def __init__(self, connection: "Connection", max_buffer: int) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        """By lower-case name; the last one of a name counts."""
        self.connection = connection
        self.is_paused = False
        """The reader is behind, and the replica is not read."""
        self._max_buffer = max_buffer
        self._parts: list[bytes] = []
        self._size = 0
        self._ended = False
        self._failure: UpstreamError | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def begin(self) -> None:
        """Until status and headers are there. Raises UpstreamError."""
        while not self.status:
            await self._wait()

    async def read(self) -> bytes:
        """All that has come since, as soon as there is something; empty at the end. Raises UpstreamError.

        What had come before a failure is handed out first.
        """
        while not self._parts:
            if self._ended:
                return b""
            await self._wait()
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        if self.is_paused:
            self.is_paused = False
            self.connection.resume()
        return data

    async def read_all(self, max_bytes: int) -> bytes:
        """The rest of the body. Raises UpstreamError, also for one that is larger."""
        parts: list[bytes] = []
        size = 0
        while part := await self.read():
            size += len(part)
            if size > max_bytes:
                self.abort()
                raise UpstreamError(
                    FailureKind.GARBAGE, f"the answer has more than {max_bytes} bytes"
                )
            parts.append(part)
        return b"".join(parts)

    def abort(self) -> None:
        """Nobody reads on: the connection is closed unless the answer has come to its end."""
        self.connection.abandon(self)

    # -- called by the connection -----------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """A piece of the body."""
        self._parts.append(data)
        self._size += len(data)
        if self._size > self._max_buffer and not self.is_paused:
            self.is_paused = True
            self.connection.pause()
        self.wake()

    def end(self) -> None:
        """It is complete."""
        self._ended = True
        self.wake()

    def fail(self, failure: UpstreamError) -> None:
        """It will not be complete."""
        if not self._ended and self._failure is None:
            self._failure = failure
            self.wake()

    def wake(self) -> None:
        """Whoever waits looks again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class Connection(asyncio.Protocol):
    """A connection that carries one exchange at a time."""

    def __init__(self) -> None:
        self.is_reusable = False
        """It is open, idle, and the last exchange left it in order."""
        self.has_carried = False
        """An exchange went over it before: the replica may have closed it meanwhile."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._response: Response | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._num_header_bytes = 0
        self._num_bare_bytes = 0
        self._first_byte = self._between = 0.0
        self._deadline = self._timer_at = 0.0
        self._has_body = False
        self._timer: asyncio.TimerHandle | None = None

    # -- used by the pool -------------------------------------------------------------------------

    def send(
        self, request: bytes, *, first_byte: float, between: float, max_buffer: int
    ) -> Response:
        """Send a whole request. `first_byte` and `between` are seconds without a byte of the body."""
        transport = self._transport
        assert transport is not None
        self.is_reusable = False
        response = Response(self, max_buffer)
        if transport.is_closing():
            response.fail(UpstreamError(FailureKind.CUT, _CLOSED))
            return response
        self._parser = httptools.HttpResponseParser(self)
        self._num_header_bytes = self._num_bare_bytes = 0
        self._has_body = False
        self._first_byte, self._between = first_byte, between
        self._response = response
        self._look_at(self._loop.time() + first_byte)
        transport.write(request)
        return response

    def close(self) -> None:
        """End it; an exchange under way fails."""
        self.is_reusable = False
        self._stop_timer()
        if self._transport is not None:
            self._transport.abort()

    def abandon(self, response: Response) -> None:
        """Called by a response that nobody reads any more."""
        if response is self._response:
            self._response = None
            self.close()

    def pause(self) -> None:
        """The reader is slower than the replica."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """The reader has caught up."""
        self._deadline = self._loop.time() + self._between
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # -- asyncio's protocol -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have asyncio's methods but not its base class.
        self._transport = cast("asyncio.Transport", transport)
        self.is_reusable = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_reusable = False
        self._stop_timer()
        response, self._response = self._response, None
        if response is None:
            return
        if response.status and exc is None and _ends_with_connection(response):
            response.end()
        else:
            response.fail(UpstreamError(FailureKind.CUT, str(exc or _CLOSED)))

    def eof_received(self) -> None:
        self.is_reusable = False  # and the transport closes

    def data_received(self, data: bytes) -> None:
        if self._response is None or self._parser is None:
            self.close()  # it speaks although nothing was asked
            return
        # Counted raw: the parser tells of a header only when all of it has come.
        self._num_bare_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            is_long = self._num_header_bytes > MAX_HEADER_BYTES
            self._fail(FailureKind.GARBAGE, _LONG_HEADERS if is_long else f"not HTTP: {error}")
        else:
            if self._num_bare_bytes > MAX_HEADER_BYTES:
                self._fail(FailureKind.GARBAGE, _LONG_HEADERS)

    # -- httptools' callbacks ---------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Called by the parser at the first byte of an answer."""
        if self._response is None:
            self.close()  # another answer than the one that was asked for

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser; also behind the body, for trailers."""
        self._num_header_bytes += len(name) + len(value)
        if self._num_header_bytes > MAX_HEADER_BYTES:
            raise ValueError(_LONG_HEADERS)
        if self._response is not None and not self._response.status:
            self._response.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        if self._response is None or self._parser is None:
            return
        status = self._parser.get_status_code()
        if status >= 200:
            self._response.status = status
            self._response.wake()
        else:
            self._response.headers.clear()  # an interim answer: the real one follows

    def on_body(self, body: bytes) -> None:
        """Called by the parser with each piece of the body."""
        self._num_bare_bytes = 0
        deadline = self._loop.time() + self._between
        if self._has_body:
            self._deadline = deadline
        else:
            self._has_body = True
            self._look_at(deadline)
        if self._response is not None:
            self._response.feed(body)

    def on_message_complete(self) -> None:
        """Called by the parser at the end of the answer."""
        response = self._response
        if response is None or not response.status:
            return  # of an interim answer (1xx)
        assert self._parser is not None
        assert self._transport is not None
        self._response = None
        self.has_carried = True
        # An answer that came before its request was gone leaves a server that reads no further.
        is_sent = self._transport.get_write_buffer_size() == 0
        if is_sent and self._parser.should_keep_alive() and not self._transport.is_closing():
            self.is_reusable = True
        else:
            self.close()
        response.end()

    def _fail(self, kind: FailureKind, detail: str) -> None:
        response, self._response = self._response, None
        self.close()
        if response is not None:
            response.fail(UpstreamError(kind, detail))

    # -- time ------------------------------------------------------------------------------------------

    def _look_at(self, deadline: float) -> None:
        """From now on, this is the time by which something must have come."""
        self._deadline = deadline
        if self._timer is None or self._timer_at > deadline:
            self._stop_timer()
            self._timer_at = deadline
            self._timer = self._loop.call_at(deadline, self._on_timer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        if self._response is None:
            return
        now = self._loop.time()
        if self._response.is_paused:
            # It is our reader who is late; what counts is set when it goes on.
            self._look_at(now + self._between)
        elif now < self._deadline:
            self._look_at(self._deadline)
        elif self._has_body:
            self._fail(FailureKind.STALLED, f"no byte for {self._between:g} s")
        else:
            self._fail(FailureKind.FIRST_BYTE, f"no byte of an answer after {self._first_byte:g} s")


def _ends_with_connection(response: Response) -> bool:
    """The body has no length: it ends when the connection does."""
    headers = response.headers
    return b"content-length" not in headers and b"transfer-encoding" not in headers
