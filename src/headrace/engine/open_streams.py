"""The event streams of one engine's open requests: events find their readers, and readers can leave."""

from collections.abc import Callable

from headrace.core.events import FinishReason, TokenEvent
from headrace.core.request import Request
from headrace.engine.dues import Dues
from headrace.engine.stream import EventStream


class OpenStreams:
    """By request id. Everything happens on the event loop's thread."""

    def __init__(self, cancel: Callable[[str, int | None], None], dues: Dues) -> None:
        """`cancel` ends a request, or one of its sequences, in the engine."""
        self._cancel = cancel
        self._dues = dues
        self._streams: dict[str, EventStream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._streams

    def open(self, requests: tuple[Request, ...], submit: Callable[[Request], None]) -> EventStream:
        """One stream for these requests, which `submit` hands over; what it raises is raised, and none was taken."""
        keys = [(r.request_id, index) for r in requests for index in range(r.n)]
        stream = EventStream(keys, self._leave)
        try:
            for request in requests:
                submit(request)
                self._streams[request.request_id] = stream
                self._dues.add(request)
        except BaseException:
            stream.close()  # those that were handed over already
            raise
        return stream

    def push(self, event: TokenEvent) -> None:
        """To its reader, if there still is one."""
        if event.finish is not None:
            self._dues.settle(event.request_id)
        stream = self._streams.get(event.request_id)
        if stream is None:
            return
        stream.push(event)
        if event.finish is not None and not stream.has_open(event.request_id):
            self._streams.pop(event.request_id, None)

    def finish_all(self, reason: FinishReason) -> None:
        """End every request now, for those who read its events and in the engine."""
        for request_id, stream in tuple(self._streams.items()):
            stream.finish_all(reason)
            self._leave(request_id, None)

    def fail_all(self, reason: str, kind: str) -> None:
        """The engine is gone, or has dropped them: end every request with an error."""
        self._dues.clear()
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(reason, kind)

    def _leave(self, request_id: str, index: int | None) -> None:
        """The reader wants no more of a sequence, or of a whole request."""
        stream = self._streams.get(request_id)
        if stream is None:
            return
        self._cancel(request_id, index)
        if index is None or not stream.has_open(request_id):
            del self._streams[request_id]
