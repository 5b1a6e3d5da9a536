"""The events of requests, from the client's connection to whoever answers them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable

from headrace.core.events import FinishReason, TokenEvent

#: Events that may wait for a reader; a client that stalls longer loses its request, not our memory.
MAX_PENDING_EVENTS = 8192

#: Request id and number of a sequence.
SequenceKey = tuple[str, int]


class EventStream:
    """Events of one or several requests' sequences, in order. Ends after each of them has finished.

    One reader. `close` must be called when the reader stops early: it cancels what still runs, so
    that the requests' blocks are free within one step.
    """

    def __init__(
        self, sequences: Iterable[SequenceKey], on_cancel: Callable[[str, int | None], None]
    ) -> None:
        self._on_cancel = on_cancel
        self._open = set(sequences)
        self._events: deque[TokenEvent] = deque()
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_finished(self) -> bool:
        """Every sequence has ended (events may still wait to be read)."""
        return not self._open

    def has_open(self, request_id: str) -> bool:
        """A sequence of this request still runs."""
        return any(open_id == request_id for open_id, _ in self._open)

    def push(self, event: TokenEvent) -> None:
        """Called by the client; events after a sequence's end are dropped."""
        sequence = (event.request_id, event.index)
        if sequence not in self._open:
            return
        if event.finish is not None:
            self._open.discard(sequence)
        self._events.append(event)
        self._wake()
        if len(self._events) > MAX_PENDING_EVENTS and self._open:
            self._cancel_open()
            self.fail("The client reads too slowly.", "RequestCancelledError")

    def fail(self, reason: str, kind: str) -> None:
        """End every open sequence with an error."""
        self._end_open(FinishReason.ERROR, reason, kind)

    def finish_all(self, reason: FinishReason) -> None:
        """End every open sequence as if the engine had, for instance when a drain runs out of time."""
        self._end_open(reason, None, None)

    def stop_sequence(self, request_id: str, index: int) -> None:
        """The reader has seen enough of this sequence (a stop string): end it in the engine too."""
        if (request_id, index) in self._open:
            self._open.discard((request_id, index))
            self._on_cancel(request_id, index)

    async def next_batch(self) -> list[TokenEvent]:
        """All events that wait, or the next ones; empty at the end."""
        while not self._events:
            if not self._open:
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
        if self._open:
            self._cancel_open()
            self._open.clear()
            self._wake()

    def _cancel_open(self) -> None:
        for request_id in {request_id for request_id, _ in self._open}:
            self._on_cancel(request_id, None)

    def _end_open(self, finish: FinishReason, error: str | None, kind: str | None) -> None:
        for request_id, index in sorted(self._open):
            event = TokenEvent(request_id, index, finish=finish, error=error, error_kind=kind)
            self._events.append(event)
        self._open.clear()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
