"""May this request come in now? Decided from numbers at hand, before any work is done for it.

A request waits from its arrival to its first token. Bounded are the requests that wait beyond those that
can start at once, and their prompt tokens; beyond, the answer is 429 with `Retry-After`.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack

from headrace.core.clock import Clock
from headrace.core.errors import OverloadedError, UnavailableError

#: English text has about 4.5 bytes a token; 4 errs on the careful side for a guess from bytes.
BYTES_PER_TOKEN = 4
#: Seconds over which the rate of starts is measured, and the longest wait that is ever advised.
RATE_WINDOW = 10.0
MAX_RETRY_AFTER = 60.0
#: Share of a bound below which a queue that was full counts as open again: no flapping at the edge.
REOPEN_SHARE = 0.8


class Ticket:
    """One admitted request. `start` when its first token is there, `close` in any case."""

    __slots__ = ("_admission", "_is_open", "_is_waiting", "held", "num_tokens")

    def __init__(self, admission: "Admission", num_tokens: int) -> None:
        self._admission = admission
        self._is_open = True
        self._is_waiting = True
        self.num_tokens = num_tokens
        self.held = ExitStack()
        """What the request holds; let go when the ticket is closed."""

    def resize(self, num_tokens: int) -> None:
        """Its prompt has been counted: no longer a guess."""
        if self._is_waiting:
            self._admission.queued_tokens += num_tokens - self.num_tokens
            self.num_tokens = num_tokens
            self._admission.note_change()

    def start(self) -> None:
        """It no longer waits."""
        if self._is_waiting:
            self._is_waiting = False
            self._admission.leave_queue(self.num_tokens, has_started=True)

    def close(self) -> None:
        """It is gone. Does nothing the second time."""
        if self._is_open:
            self._is_open = False
            self.held.close()
            if self._is_waiting:
                self._is_waiting = False
                self._admission.leave_queue(self.num_tokens, has_started=False)
            else:
                self._admission.num_started -= 1
            self._admission.note_close()


class BackgroundTicket(Ticket):
    """One that nobody waits for: it stands in no queue, and keeps nobody out."""

    __slots__ = ()

    def __init__(self, admission: "Admission") -> None:
        super().__init__(admission, 0)
        admission.num_background += 1

    def resize(self, num_tokens: int) -> None:
        """It counts no tokens."""

    def start(self) -> None:
        """It was never in the queue."""

    def close(self) -> None:
        """Part of Ticket."""
        if self._is_open:
            self._is_open = False
            self.held.close()
            self._admission.num_background -= 1


class Admission:
    """Counts what waits and what runs; lets in or refuses."""

    def __init__(
        self,
        clock: Clock,
        *,
        max_queued_requests: int,
        max_queued_tokens: int,
        closed_reason: Callable[[], str | None],
        on_reject: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._clock = clock
        self._max_requests = max_queued_requests
        self._max_tokens = max_queued_tokens
        self._closed_reason = closed_reason
        self._on_reject = on_reject
        self._starts: deque[float] = deque(maxlen=4096)
        self._empty = asyncio.Event()
        self._empty.set()
        self.max_running = 1
        """Requests that can run at once; those do not count as queued."""
        self.num_waiting = 0
        self.num_started = 0
        self.queued_tokens = 0
        self.num_background = 0
        """Requests that nobody waits for; in none of the other numbers."""
        self.on_enter: Callable[[], None] = lambda: None
        """Called when a request has come in that somebody waits for."""
        self._is_full = False

    @property
    def full_reason(self) -> str | None:
        """Why others should get the next requests, in one sentence; None while the queue has room. O(1)."""
        if not self._is_full:
            return None
        return f"The queue is full: {self.num_waiting} requests with {self.queued_tokens} prompt tokens wait."

    @property
    def is_closed(self) -> bool:
        """Nothing is let in now, full or not."""
        return self._closed_reason() is not None

    @property
    def num_open(self) -> int:
        """Requests that hold a ticket."""
        return self.num_waiting + self.num_started

    def check_open(self) -> None:
        """Refuse before the body is read. Raises UnavailableError or OverloadedError."""
        reason = self._closed_reason()
        if reason is not None:
            self._on_reject("closed")
            raise UnavailableError(reason, retry_after=1.0)
        if self._num_queued >= self._max_requests:
            self._on_reject("queue")
            raise OverloadedError(
                f"{self.num_waiting} requests are waiting already; try again later.",
                retry_after=self.retry_after(),
            )

    def enter(self, num_bytes: int, *, is_background: bool = False) -> Ticket:
        """A ticket for a request whose body has this many bytes. Raises as `check_open`."""
        self.check_open()
        if is_background:
            return BackgroundTicket(self)
        num_tokens = max(1, num_bytes // BYTES_PER_TOKEN)
        # One that comes to an empty queue is always let in: it could never come in otherwise.
        if self.num_waiting and self.queued_tokens + num_tokens > self._max_tokens:
            self._on_reject("tokens")
            raise OverloadedError(
                f"{self.queued_tokens} prompt tokens are waiting already; try again later.",
                retry_after=self.retry_after(),
            )
        self.num_waiting += 1
        self.queued_tokens += num_tokens
        self._empty.clear()
        self.note_change()
        self.on_enter()
        return Ticket(self, num_tokens)

    def leave_queue(self, num_tokens: int, *, has_started: bool) -> None:
        """Called by tickets."""
        self.num_waiting -= 1
        self.queued_tokens -= num_tokens
        if has_started:
            self.num_started += 1
            self._starts.append(self._clock.monotonic())
        self.note_change()

    def note_change(self) -> None:
        """Called by tickets: the queue is full from its bound on, and open again well below it."""
        share = REOPEN_SHARE if self._is_full else 1.0
        has_many_tokens = self.queued_tokens >= share * self._max_tokens
        self._is_full = self._num_queued >= share * self._max_requests or (
            self.num_waiting > 0 and has_many_tokens
        )

    def note_close(self) -> None:
        """Called by tickets."""
        self.note_change()
        if not self.num_open:
            self._empty.set()

    async def wait_empty(self, patience: float) -> bool:
        """Wait until nobody holds a ticket, for at most `patience` seconds; whether it came to that."""
        try:
            await asyncio.wait_for(self._empty.wait(), patience)
        except TimeoutError:
            return not self.num_open
        return True

    @property
    def _num_queued(self) -> int:
        """Requests that wait beyond those that can start at once; less than 0 while places are free."""
        return self.num_waiting - max(0, self.max_running - self.num_started)

    def retry_after(self) -> float:
        """Seconds until the queue that is here now has started, at the pace of the last seconds."""
        now = self._clock.monotonic()
        while self._starts and self._starts[0] < now - RATE_WINDOW:
            self._starts.popleft()
        if not self._starts:
            return RATE_WINDOW
        rate = len(self._starts) / max(1.0, min(RATE_WINDOW, now - self._starts[0]))
        return min(MAX_RETRY_AFTER, max(1.0, self.num_waiting / rate))
