"""Is the engine stuck? What it owes, and for how long it has done nothing about it."""

from typing import NamedTuple

from headrace.core.clock import Clock
from headrace.core.request import Request

#: A step of this many tokens may take the watchdog's time. Steps are smaller than that or bounded in time,
#: unless prompts are not split, or are texts to be pooled: then a step gets time in proportion.
TOKENS_PER_TIMEOUT = 512


class _Owed(NamedTuple):
    num_left: int
    """Sequences that have not ended."""
    longest: int
    """Tokens of its longest step, if it runs in one."""
    is_text: bool
    """It does in any case: it is a text to be pooled."""


class Dues:
    """Sequences whose end the engine has not told, and when it last made a step or a word.

    A client that leaves does not settle what the engine owes: the engine must say that the sequence ended,
    or one that hangs would look idle as soon as everybody has given up.
    """

    def __init__(self, clock: Clock, timeout: float) -> None:
        self._clock = clock
        self._timeout = timeout
        self._owed: dict[str, _Owed] = {}
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
        longest, is_text = request.num_prompt_tokens, request.pooling is not None
        if not is_text:
            longest += request.params.max_tokens  # recomputed at its end
        self._owed[request.request_id] = _Owed(request.n, longest, is_text)

    def settle(self, request_id: str) -> None:
        """One more of the request's sequences has ended in the engine."""
        owed = self._owed.get(request_id)
        if owed is not None and owed.num_left > 1:
            self._owed[request_id] = owed._replace(num_left=owed.num_left - 1)
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
        longest = max(
            (
                owed.longest
                for owed in self._owed.values()
                if owed.is_text or not self.splits_prompts
            ),
            default=0,
        )
        return self._timeout * max(1.0, longest / TOKENS_PER_TIMEOUT)
