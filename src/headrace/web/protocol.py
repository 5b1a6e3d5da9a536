"""uvicorn's HTTP/1.1 protocol with bounds: on headers, on connections, on time to read and to be read."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from headrace.core.errors import ConnectionLimitError
from headrace.web.joined import JoinedWrites
from headrace.web.problems import Answer, HttpError, answer_to

#: Connections beyond the bound on which probes are still answered; any more are closed at once.
SPARE_CONNECTIONS = 32
#: Bytes of a file that must arrive in each `read_timeout`; routes that take files count them in the scope.
MIN_PROGRESS = 64 * 1024

#: Where a handler puts what is to be called when its client leaves; the key is there if this protocol does it.
ON_GONE: Final = "headrace.on_gone"

log = logging.getLogger("headrace.access")


class ConnectionBounds(NamedTuple):
    """What one connection, and all of them together, may take."""

    max_connections: int
    read_timeout: float
    """Seconds in which a request must arrive, and in which a new connection must begin one."""
    stall_timeout: float
    """Seconds that a client may leave unread what does not fit the buffers between us."""
    on_reject: Callable[[str], None] = lambda _: None
    max_header_bytes: int = 64 * 1024
    """Request line and headers together. Real clients send 1 to 2 kB."""
    max_headers: int = 100


class HeaderTooLargeError(Exception):
    """Raised inside the parser, which reports it as a parser error."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, bounds: ConnectionBounds, **options: Any) -> None:
        super().__init__(*args, **options)
        self._bounds = bounds
        self._num_header_bytes = 0
        self._num_headers = 0
        self._is_surplus = False
        self._has_begun = False
        self._is_awaited = True
        """A request, or the rest of one, is to come in time."""
        self._read_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    # -- the connection -----------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """Part of asyncio's protocol."""
        super().connection_made(transport)
        self._is_surplus = self._num_excess > 0
        if self._num_excess > SPARE_CONNECTIONS:
            self._bounds.on_reject("connections")
            self._end_with(answer_to(ConnectionLimitError("Too many connections are open.")))
        else:
            self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of asyncio's protocol."""
        self._cancel_timers()
        cycle = self.cycle
        super().connection_lost(exc)
        if cycle is not None and not cycle.response_complete:
            on_gone: Any = cycle.scope.get(ON_GONE)
            if on_gone is not None:
                on_gone()

    def data_received(self, data: bytes) -> None:
        """Part of asyncio's protocol."""
        self._is_awaited = True
        super().data_received(data)
        # Most requests come in one piece: those need no timer.
        if self._is_awaited:
            self._await_request()

    @property
    def _num_excess(self) -> int:
        return len(self.connections) - self._bounds.max_connections

    # -- a request arrives --------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Part of httptools' callbacks."""
        self._num_header_bytes = self._num_headers = 0
        self._has_begun = self._is_awaited = True
        super().on_message_begin()  # type: ignore[no-untyped-call, unused-ignore]
        self.scope[ON_GONE] = None  # type: ignore[typeddict-unknown-key, unused-ignore]
        self.scope["headrace.is_surplus"] = self._is_surplus and self._num_excess > 0  # type: ignore[typeddict-unknown-key, unused-ignore]

    def on_url(self, url: bytes) -> None:
        """Part of httptools' callbacks."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Part of httptools' callbacks."""
        self._num_headers += 1
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Part of httptools' callbacks."""
        known = self.cycle
        super().on_headers_complete()
        # To HEAD the head is all that is written: held back, it would be lost with a client that ends its side at once.
        if self.cycle is not known and self.scope["method"] != "HEAD":
            self.cycle.transport = cast("Any", JoinedWrites(self.transport, self.loop))

    def on_message_complete(self) -> None:
        """Part of httptools' callbacks."""
        self._has_begun = self._is_awaited = False
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """The request cannot be parsed: an error object, and the end of the connection."""
        error = HttpError(400, "This is not a valid HTTP request.")
        bounds = self._bounds
        if self._num_header_bytes > bounds.max_header_bytes:
            what = f"The headers have more than {bounds.max_header_bytes} bytes (max_header_bytes)."
            error = HttpError(431, what)
        elif self._num_headers > bounds.max_headers:
            error = HttpError(
                431, f"There are more than {bounds.max_headers} headers (max_headers)."
            )
        self._end_with(answer_to(error))

    def _count(self, num_bytes: int) -> None:
        self._num_header_bytes += num_bytes
        bounds = self._bounds
        if (
            self._num_header_bytes > bounds.max_header_bytes
            or self._num_headers > bounds.max_headers
        ):
            raise HeaderTooLargeError

    def _await_request(self) -> None:
        """From now on a whole request must come in time."""
        if self._read_timer is None:
            timeout = self._bounds.read_timeout
            self._read_timer = self.loop.call_later(timeout, self._on_late_request)

    def _on_late_request(self) -> None:
        self._read_timer = None
        cycle = self.cycle
        is_answering = cycle is not None and not cycle.response_complete
        if self.transport.is_closing():
            return
        if self.flow.read_paused or (is_answering and not cycle.more_body):
            self._await_request()  # it is we who are late: an answer before it is under way
        elif is_answering and _take_progress(cycle.scope) >= MIN_PROGRESS:
            self._await_request()  # a large file, and it is coming on
        elif not self._has_begun or (is_answering and cycle.response_started):
            self.transport.close()
        else:
            if is_answering:
                cycle.scope["headrace.status"] = 408  # type: ignore[typeddict-unknown-key, unused-ignore]
            timeout = self._bounds.read_timeout
            self._end_with(
                answer_to(HttpError(408, f"The request took more than {timeout:g} s to arrive."))
            )

    # -- it becomes a WebSocket ---------------------------------------------------------------------

    def handle_websocket_upgrade(self) -> None:
        """Part of uvicorn's protocol: from now on another protocol has the connection, and its own bounds."""
        if self._num_excess > 0:
            self._bounds.on_reject("connections")
            self._end_with(answer_to(ConnectionLimitError("Too many connections are open.")))
            return
        self._cancel_timers()
        self._is_awaited = False
        super().handle_websocket_upgrade()

    # -- an answer leaves ---------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Part of asyncio's protocol: the client reads less than we send."""
        super().pause_writing()
        if self._stall_timer is None:
            timeout = self._bounds.stall_timeout
            self._stall_timer = self.loop.call_later(timeout, self._on_stall)

    def resume_writing(self) -> None:
        """Part of asyncio's protocol."""
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        super().resume_writing()

    def _on_stall(self) -> None:
        log.info(
            "A client has not read its answer for %g s; it is cut off", self._bounds.stall_timeout
        )
        self.transport.abort()

    def _end_with(self, answer: Answer) -> None:
        self.transport.write(_raw(answer, self.server_state.default_headers))
        self.transport.close()

    def _cancel_timers(self) -> None:
        for timer in (self._read_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self._read_timer = self._stall_timer = None


def _take_progress(scope: Any) -> int:
    """Bytes of a file that have come since the last look."""
    count: int = scope.pop("headrace.progress", 0)
    return count


def _raw(answer: Answer, default_headers: Any) -> bytes:
    headers = {
        **answer.headers,
        "content-type": "application/json",
        "content-length": str(len(answer.body)),
        "connection": "close",
    }
    lines = [STATUS_LINE[answer.status].rstrip()]
    lines += [name + b": " + value for name, value in default_headers]
    lines += [f"{name}: {value}".encode("latin-1") for name, value in headers.items()]
    return b"\r\n".join(lines) + b"\r\n\r\n" + answer.body
