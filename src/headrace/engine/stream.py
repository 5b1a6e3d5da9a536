"""The events of one request, from the client's connection to whoever answers it."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from headrace.core.events import FinishReason, TokenEvent

#: Events that may wait for a reader; a client that stalls longer loses its request, not our memory.
MAX_PENDING_EVENTS = 8192


class EventStream:
    """Events of a request's n sequences, in order. Ends after each of them has finished.

    One reader. `close` must be called when the reader stops early: it cancels what still runs, so
    that the request's blocks are free within one step.
    """

    def __init__(self, request_id: str, n: int, on_close: Callable[[str], None]) -> None:
        self.request_id = request_id
        self._on_close = on_close
        self._open = set(range(n))
        self._events: deque[TokenEvent] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._is_closed = False

    @property
    def is_finished(self) -> bool:
        """Every sequence has ended (events may still wait to be read)."""
        return not self._open

    def push(self, event: TokenEvent) -> None:
        """Called by the client; events after a sequence's end are dropped."""
        if event.index not in self._open:
            return
        if event.finish is not None:
            self._open.discard(event.index)
        self._events.append(event)
        self._wake()
        if len(self._events) > MAX_PENDING_EVENTS and self._open:
            self._on_close(self.request_id)
            self.fail("The client reads too slowly.", "RequestCancelledError")

    def fail(self, reason: str, kind: str) -> None:
        """End every open sequence with an error."""
        for index in sorted(self._open):
            self._events.append(
                TokenEvent(
                    self.request_id,
                    index,
                    finish=FinishReason.ERROR,
                    error=reason,
                    error_kind=kind,
                )
            )
        self._open.clear()
        self._wake()

    def finish_all(self, reason: FinishReason) -> None:
        """End every open sequence as if the engine had, for instance when a drain runs out of time."""
        for index in sorted(self._open):
            self._events.append(TokenEvent(self.request_id, index, finish=reason))
        self._open.clear()
        self._wake()

    async def next_batch(self) -> list[TokenEvent]:
        """All events that wait, or the next ones; empty at the end."""
        while not self._events:
            if not self._open or self._is_closed:
                return []
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        batch = list(self._events)
        self._events.clear()
        return batch

    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        """Event by event."""
        while batch := await self.next_batch():
            for event in batch:
                yield event

    def close(self) -> None:
        """The reader is done; what still runs is cancelled. Does nothing the second time."""
        if self._is_closed:
            return
        self._is_closed = True
        self._on_close(self.request_id)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
