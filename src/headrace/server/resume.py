"""Streams that outlive their connection: a client that was cut off comes back and goes on where it was.

Every event has an id, `STREAM/NUMBER`, as the HTML standard's server-sent events have it; what a client sends
back in `Last-Event-ID` says what it has. The last `window` bytes of each stream are kept, while it is made and
for `linger` seconds after its connection has gone or its end has been sent. The request goes on meanwhile,
and ends when nobody comes back in time, or when events that nobody has seen would no longer fit.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from headrace.core.errors import BadRequestError, NotFoundError
from headrace.web.asgi import Message, Receive, Scope, Send, send_body
from headrace.web.guard import owner_of
from headrace.web.streaming import watch_disconnect

#: Answers a request; given another way to its client than the connection that it came on.
Produce = Callable[[Receive, Send], Awaitable[None]]


class ResumableStream:
    """One answer: written by its request, read by one connection after another."""

    def __init__(self, stream_id: str, owner: bytes, window: int, linger: float) -> None:
        self.owner: Final = owner
        self._id = stream_id
        self._window = window
        self._linger = linger
        self._start: Message | None = None
        self._events: deque[tuple[int, bytes]] = deque()
        self._num_bytes = 0
        self._num_made = 0
        self._num_read = 0
        """Events that some connection has been given."""
        self._is_done = False
        self._error: Exception | None = None
        self._reader: object | None = None
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._gone = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None
        """The request."""
        self.on_gone: Callable[[], None] = lambda: None

    # -- the request's side -------------------------------------------------------------------------

    async def produce(self, produce: Produce) -> None:
        """Run the request to its end; what it raises before its first event is the readers' to raise."""
        try:
            await produce(self._receive, self._send)
        except Exception as error:  # noqa: BLE001 - raised again where it can be answered
            self._error = error
        self._is_done = True
        self._news.set()

    async def _receive(self) -> Message:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        for block in message.get("body", b"").split(b"\n\n"):
            if block.strip():
                self._num_made += 1
                event = f"id: {self._id}/{self._num_made}\n".encode() + block + b"\n\n"
                self._events.append((self._num_made, event))
                self._num_bytes += len(event)
        self._news.set()
        while not self._trim() and not self._gone.is_set():
            if self._reader is None:
                self._give_up()
                return
            self._room.clear()
            await self._room.wait()

    def _trim(self) -> bool:
        """Forget the oldest events that have been read; whether the rest fits the window."""
        while self._num_bytes > self._window and self._events[0][0] <= self._num_read:
            self._num_bytes -= len(self._events.popleft()[1])
        return self._num_bytes <= self._window

    # -- a connection's side ------------------------------------------------------------------------

    def check(self, last: int) -> None:
        """Raise NotFoundError or BadRequestError where a reader that has `last` events cannot go on."""
        if last > self._num_made:
            raise BadRequestError(
                f"The stream has {self._num_made} events so far, and 'Last-Event-ID' names {last}.",
                param="last-event-id",
            )
        oldest = self._events[0][0] if self._events else self._num_made + 1
        if last + 1 < oldest:
            raise NotFoundError(f"Events before {oldest} of this stream are no longer kept.")

    def has_more(self, last: int) -> bool:
        """There are, or will be, events after this one."""
        return not self._is_done or last < self._num_made

    async def attach(self, last: int, receive: Receive, send: Send) -> None:
        """Send what comes after event `last`. A reader that is here already has its end."""
        me = self._reader = object()
        self._news.set()
        if self._timer is not None:
            self._timer.cancel()
        has_left = False

        def leave() -> None:
            nonlocal has_left
            has_left = True
            self._news.set()
            self._room.set()

        watcher = asyncio.create_task(watch_disconnect(receive, leave))
        has_begun = False
        try:
            while not has_left:
                self._news.clear()
                if self._start is None and self._is_done:
                    raise self._error or NotFoundError("The request was ended.")
                pending = self._after(last) if self._reader is me else b""
                if pending and self._start is not None:
                    last = self._num_made  # more may be made while this is sent
                    if not has_begun:
                        has_begun = True
                        await send(dict(self._start))
                    await send({"type": "http.response.body", "body": pending, "more_body": True})
                    self._num_read = max(self._num_read, last)
                    self._room.set()
                elif self._reader is not me or self._is_done:
                    await self._end(send, has_begun=has_begun)
                    return
                else:
                    await self._news.wait()
        finally:
            watcher.cancel()
            if self._reader is me:
                self._detach(is_known=has_begun)

    async def _end(self, send: Send, *, has_begun: bool) -> None:
        if not has_begun and self._start is not None:
            await send(dict(self._start))
        await send({"type": "http.response.body", "body": b""})

    def _after(self, last: int) -> bytes:
        skipped = last + 1 - self._events[0][0] if self._events else 0
        return b"".join(event for place, (_, event) in enumerate(self._events) if place >= skipped)

    def _detach(self, *, is_known: bool) -> None:
        """The connection is gone: wait for another, if the client has seen an id to come back with."""
        self._reader = None
        self._room.set()
        if not is_known:
            self._give_up()
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._linger, self._give_up)

    def _give_up(self) -> None:
        self._gone.set()
        self._room.set()
        self.on_gone()


class ResumableStreams:
    """All streams that can be resumed; beyond `max_streams` a stream is as any other."""

    def __init__(self, *, window: int, linger: float, max_streams: int) -> None:
        self._window = window
        self._linger = linger
        self._max_streams = max_streams
        self._streams: dict[str, ResumableStream] = {}

    @property
    def num_kept(self) -> int:
        """Streams that run or linger."""
        return len(self._streams)

    async def serve(
        self, stream_id: str, owner: bytes, produce: Produce, receive: Receive, send: Send
    ) -> None:
        """Answer a request with a stream that its owner may come back to."""
        if not self._window or len(self._streams) >= self._max_streams:
            await produce(receive, send)
            return
        stream = ResumableStream(stream_id, owner, self._window, self._linger)
        self._streams[stream_id] = stream
        stream.on_gone = lambda: self._forget(stream_id)
        stream.task = asyncio.create_task(stream.produce(produce))
        await stream.attach(0, receive, send)

    def find(self, event_id: str, owner: bytes) -> tuple[ResumableStream, int] | None:
        """The stream, and the number of events that the client has; None at the end of everything.

        `event_id` is what it sent: STREAM/NUMBER, or STREAM for all. Raises NotFoundError (also for what
        belongs to another key) and BadRequestError.
        """
        stream_id, _, number = event_id.partition("/")
        stream = self._streams.get(stream_id)
        if stream is None or stream.owner != owner:
            raise NotFoundError("There is no such stream, or it is no longer kept.")
        if number and not (number.isascii() and number.isdecimal() and len(number) <= 18):
            raise BadRequestError("'Last-Event-ID' ends in no number.", param="last-event-id")
        last = int(number or 0)
        stream.check(last)
        return (stream, last) if stream.has_more(last) else None

    def _forget(self, stream_id: str) -> None:
        self._streams.pop(stream_id, None)


async def resume(
    streams: ResumableStreams, event_id: str, scope: Scope, receive: Receive, send: Send
) -> None:
    """Answer with what comes after an event. Raises NotFoundError and BadRequestError."""
    found = streams.find(event_id, owner_of(scope))
    if found is None:
        # The standard's word to a browser that it need not come back.
        await send_body(send, b"", status=204)
        return
    stream, last = found
    await stream.attach(last, receive, send)
