"""Identical requests in flight: the answer is made once, and everybody gets it from its start.

The making belongs to no client. It runs in a task of its own for as long as at least one client listens, and stops
when the last has left. All that was made is held until every listener has read it, up to a bound; then the making
waits for the slowest, and newcomers, who would miss the beginning, are made an answer of their own.

Where the making fails before the first listener was told anything, one of the others makes it anew; faults of the
request itself are told to all.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final

from headrace.core.errors import BadRequestError, NotFoundError, RequestCancelledError
from headrace.web.asgi import Message, Send

#: Times that a listener makes the answer itself, or waits for another who does, before it is told the fault.
_TURNS: Final = 3
#: What one answer may hold even when all together hold too much.
_FLOOR: Final = 64 * 1024


class Budget:
    """Bytes that all flights hold together."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held = 0


#: Key of an ASGI body message, its last: OpenAI's usage object of an answer, whether its body tells it or not.
USAGE: Final = "headrace.usage"

Make = Callable[[Send], Awaitable[None]]
"""Makes an answer and sends it, as ASGI has it. It is cancelled when nobody listens any more."""


class Flight:
    """One answer in the making, and those who listen."""

    def __init__(
        self, make: Make, max_bytes: int, budget: Budget, on_end: Callable[["Flight"], None]
    ) -> None:
        self._make = make
        self._max = max_bytes
        self._budget = budget
        self._on_end = on_end
        self._chunks: list[bytes] = []
        self._dropped = 0
        self._held = 0
        self._listeners: set[Listener] = set()
        self._changed = asyncio.Event()
        self._read = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.head: Message | None = None
        """`http.response.start`, once it has come."""
        self.usage: dict[str, Any] | None = None
        """What making it cost, as OpenAI's usage object, once that is known."""
        self.is_over = False
        self.failure: Exception | None = None

    @property
    def can_be_joined(self) -> bool:
        """Nothing of it has been dropped, and it has not failed."""
        return not self._dropped and self.failure is None

    @property
    def num_listeners(self) -> int:
        """Clients that listen."""
        return len(self._listeners)

    @property
    def is_pressed(self) -> bool:
        """It holds more than it may."""
        is_over = self._budget.held >= self._budget.max_bytes
        return self._held >= self._max or (is_over and self._held >= min(_FLOOR, self._max))

    def listen(self, *, is_first: bool) -> "Listener":
        """One more client. The first one starts the making."""
        listener = Listener(self, is_first)
        self._listeners.add(listener)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return listener

    def leave(self, listener: "Listener") -> None:
        """That client reads no more. With the last one the making stops."""
        self._listeners.discard(listener)
        if self._listeners:
            self._let_go()
            return
        if self._task is not None and not self.is_over:
            self._end(None)
            self._task.cancel()
        self._drop(len(self._chunks))

    def chunk(self, position: int) -> bytes | None:
        """The chunk of this number, if it was made already."""
        at = position - self._dropped
        return self._chunks[at] if at < len(self._chunks) else None

    async def wait(self) -> None:
        """Until something has changed."""
        await self._changed.wait()

    def was_read(self) -> None:
        """A listener went on."""
        if self.is_pressed:
            self._let_go()

    async def _run(self) -> None:
        failure: Exception | None = None
        try:
            await self._make(self._hear)
        except asyncio.CancelledError:
            failure = RequestCancelledError("The answer was given up.")
            raise
        except Exception as error:  # noqa: BLE001  whatever it was, each listener is told
            failure = error
        finally:
            self._end(failure)

    async def _hear(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.head = message
            self._tell()
            return
        if (usage := message.get(USAGE)) is not None:
            self.usage = usage
        if message.get("body"):
            await self._take(message["body"])

    async def _take(self, chunk: bytes) -> None:
        if self.is_over:
            return  # last words of a making that was stopped: nobody will ever read them
        self._chunks.append(chunk)
        self._held += len(chunk)
        self._budget.held += len(chunk)
        self._tell()
        while not self._fits():
            self._read.clear()
            await self._read.wait()

    def _fits(self) -> bool:
        self._let_go()
        return not self.is_pressed

    def _let_go(self) -> None:
        # Only what everybody has read, and only under pressure: until then newcomers may want it.
        if self.is_pressed:
            slowest = min((one.position for one in self._listeners), default=self._dropped)
            self._drop(slowest - self._dropped)
        if not self.is_pressed:
            self._read.set()

    def _drop(self, num_chunks: int) -> None:
        size = sum(map(len, self._chunks[:num_chunks]))
        del self._chunks[:num_chunks]
        self._dropped += num_chunks
        self._held -= size
        self._budget.held -= size

    def _end(self, failure: Exception | None) -> None:
        if self.is_over:
            return
        self.is_over, self.failure = True, failure
        self._on_end(self)
        self._tell()

    def _tell(self) -> None:
        # Whoever waits holds the old event; the next wait is for the next change.
        self._changed.set()
        self._changed = asyncio.Event()


class Listener:
    """One client's ear: the head, then the chunks from the first on. Close it, always."""

    def __init__(self, flight: Flight, is_first: bool) -> None:
        self._flight = flight
        self.is_first = is_first
        self.position = 0

    async def head(self) -> Message:
        """`http.response.start`. Raises what the making failed with."""
        while self._flight.head is None:
            if self._flight.failure is not None:
                raise self._flight.failure
            if self._flight.is_over:
                raise RequestCancelledError("Nothing was answered.")
            await self._flight.wait()
        return self._flight.head

    @property
    def usage(self) -> dict[str, Any] | None:
        """What the answer cost, if it was told; behind its last chunk."""
        return self._flight.usage

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """What was made, as it is made. Raises what the making failed with, behind all that came before."""
        flight = self._flight
        while True:
            chunk = flight.chunk(self.position)
            if chunk is not None:
                self.position += 1
                flight.was_read()
                yield chunk
            elif flight.is_over:
                if flight.failure is not None:
                    raise flight.failure
                return
            else:
                await flight.wait()

    def close(self) -> None:
        """Its client has left, or has all."""
        self._flight.leave(self)


class Flights:
    """All answers in flight, by key. One event loop."""

    def __init__(self, *, max_bytes: int, max_total_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._budget = Budget(max_total_bytes)
        self._flights: dict[bytes, Flight] = {}

    @property
    def num_flights(self) -> int:
        """Answers in the making."""
        return len(self._flights)

    @property
    def held_bytes(self) -> int:
        """Bytes in memory."""
        return self._budget.held

    async def join(self, key: bytes, make: Make) -> Listener:
        """Listen to the answer to `key`; it is made by `make` unless it is in the making. The head has come.

        Raises what the making failed with: at once if the request itself is at fault, else after some turns. Where that
        happens behind the head, the listener's `chunks` raise it.
        """
        turn = 1
        while True:
            listener = self._listener(key, make)
            try:
                await listener.head()
            except (BadRequestError, NotFoundError, asyncio.CancelledError):
                listener.close()
                raise
            except Exception:
                listener.close()
                if listener.is_first or turn == _TURNS:
                    raise
                turn += 1
            else:
                return listener

    def _listener(self, key: bytes, make: Make) -> Listener:
        flight = self._flights.get(key)
        if flight is not None and flight.can_be_joined:
            return flight.listen(is_first=False)

        def forget(ended: Flight) -> None:
            if self._flights.get(key) is ended:
                del self._flights[key]

        # One that can no longer be joined goes on for those who listen to it.
        flight = self._flights[key] = Flight(make, self._max_bytes, self._budget, forget)
        return flight.listen(is_first=True)
