"""How fast a replica has been of late: moving averages over its own requests."""

from typing import Final

#: Weight of a new value: the last ten requests or so count.
ALPHA: Final = 0.2
#: Part of the old sums that is kept with each new prompt: the last twenty or so count.
_KEPT: Final = 0.95
#: Shorter prompts say little of the rate: most of their time is not computing.
_TELLING: Final = 64


class Latency:
    """Times to the first token and per output token, and prompt tokens a second."""

    __slots__ = (
        "_ahead",
        "_first",
        "_seconds",
        "_tokens",
        "_wait",
        "num_samples",
        "tpot",
        "ttft",
    )

    def __init__(self) -> None:
        self.ttft: float | None = None
        self.tpot: float | None = None
        self.num_samples = 0
        self._wait: float | None = None
        self._ahead: float | None = None
        self._first = 0.0
        self._tokens = 0.0
        self._seconds = 0.0

    @property
    def work_time(self) -> float | None:
        """Seconds to the first token per prompt token that was in front of it, its own included: comparable
        between replicas whatever they were sent. Of sums, so that prompts that were cached, which take their time for
        next to no token, do not make a replica look slow.
        """
        return self._wait / self._ahead if self._wait is not None and self._ahead else None

    @property
    def prefill_rate(self) -> float | None:
        """Uncached prompt tokens per second while there were any to compute; None: not known yet."""
        return self._tokens / self._seconds if self._seconds > 0 and self._tokens > 0 else None

    def note_first_token(self, seconds: float, tokens_ahead: int) -> None:
        """The first token took so long; so many uncached prompt tokens were to be computed before it."""
        self.num_samples += 1
        self.ttft = _mixed(self.ttft, seconds)
        if tokens_ahead <= 0 or seconds <= 0:
            return
        self._wait = _mixed(self._wait, seconds)
        self._ahead = _mixed(self._ahead, tokens_ahead)

    def note_prefill(self, sent: float, now: float, num_tokens: int) -> None:
        """A request that was sent at `sent` has its first token; so many of its prompt's tokens had to be computed.

        Prompts are computed one after another: this one's turn was since the first token before it, if it was sent
        already. Several that come out of one step share its time, for both are summed. Short prompts end nobody's turn:
        their seconds stay with the next long one, so the rate is too low rather than too high. Times are of
        `Clock.monotonic`.
        """
        if num_tokens < _TELLING:
            return
        begun = max(sent, self._first)
        self._first = max(now, self._first)
        self._tokens = _KEPT * self._tokens + num_tokens
        self._seconds = _KEPT * self._seconds + max(0.0, now - begun)

    def note_output(self, seconds: float, num_tokens: int) -> None:
        """So many tokens came in so long after the first."""
        if num_tokens > 0:
            self.tpot = _mixed(self.tpot, seconds / num_tokens)


def _mixed(old: float | None, new: float, alpha: float = ALPHA) -> float:
    return new if old is None else old + alpha * (new - old)
