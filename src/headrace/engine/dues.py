"""Is the engine stuck? What it owes, and for how long it has done nothing about it."""

from headrace.core.clock import Clock
from headrace.core.request import Request

#: A step of this many tokens may take the watchdog's time. Steps are smaller than that or bounded in time,
#: unless prompts are not split: then a step is as long as its prompt, and gets time in proportion.
TOKENS_PER_TIMEOUT = 512


class Dues:
    """Sequences whose end the engine has not told, and when it last made a step or a word.

    A client that leaves does not settle what the engine owes: the engine must say that the sequence ended,
    or one that hangs would look idle as soon as everybody has given up.
    """

    def __init__(self, clock: Clock, timeout: float) -> None:
        self._clock = clock
        self._timeout = timeout
        self._owed: dict[
            str, tuple[int, int]
        ] = {}  # request id → sequences, tokens of its longest step
        self._last_progress = clock.monotonic()
        self.splits_prompts = True
        """No step has all tokens of a long prompt."""
        self.waits_until = 0.0
        """`Clock.monotonic` until which the engine does nothing on purpose, as it says."""

    @property
    def stalled(self) -> float:
        """Seconds in which the engine has done nothing, though it should have."""
        if not self._owed:
            return 0.0
        since = max(self._last_progress, self.waits_until)
        return max(0.0, self._clock.monotonic() - since)

    @property
    def is_late(self) -> bool:
        """Half of the time that a step may take is over. O(1) unless half of the shortest time is."""
        return self.stalled > self._timeout / 2 and self.stalled > self._allowed / 2

    @property
    def is_stuck(self) -> bool:
        """More time is over than a step may take."""
        return self.stalled > self._timeout and self.stalled > self._allowed

    def add(self, request: Request) -> None:
        """The engine was handed a request."""
        if not self._owed:
            self.note_progress()
        longest = request.num_prompt_tokens + request.params.max_tokens  # recomputed at its end
        self._owed[request.request_id] = (request.n, longest)

    def settle(self, request_id: str) -> None:
        """One more of the request's sequences has ended in the engine."""
        num_left, longest = self._owed.get(request_id, (0, 0))
        if num_left > 1:
            self._owed[request_id] = (num_left - 1, longest)
        else:
            self._owed.pop(request_id, None)

    def note_progress(self) -> None:
        """The engine did something."""
        self._last_progress = self._clock.monotonic()

    def clear(self) -> None:
        """The engine is gone, and owes nothing."""
        self._owed.clear()
        self.waits_until = 0.0
        self.note_progress()

    @property
    def _allowed(self) -> float:
        """Seconds that a step may take now."""
        if self.splits_prompts:
            return self._timeout
        longest = max((tokens for _, tokens in self._owed.values()), default=0)
        return self._timeout * max(1.0, longest / TOKENS_PER_TIMEOUT)
