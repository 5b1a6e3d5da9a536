"""How fast a replica has been of late: moving averages over its own requests."""

from typing import Final

#: Weight of a new value: the last ten requests or so count.
ALPHA: Final = 0.2


class Latency:
    """Times to the first token, per output token, and prompt tokens a second when nothing else was to be done."""

    __slots__ = ("num_samples", "peak_prefill", "tpot", "ttft", "work_time")

    def __init__(self) -> None:
        self.ttft: float | None = None
        self.tpot: float | None = None
        self.work_time: float | None = None
        """Seconds to the first token per prompt token that was in front of it, its own included: comparable
        between replicas whatever they were sent."""
        self.peak_prefill: float | None = None
        """Highest rate seen, slowly forgotten."""
        self.num_samples = 0

    def note_first_token(self, seconds: float, tokens_ahead: int) -> None:
        """The first token took so long; so many uncached prompt tokens were to be computed before it."""
        self.num_samples += 1
        self.ttft = _mixed(self.ttft, seconds)
        if tokens_ahead <= 0 or seconds <= 0:
            return
        self.work_time = _mixed(self.work_time, seconds / tokens_ahead)
        rate = tokens_ahead / seconds
        # Short prompts say little of the rate: most of their time is not computing.
        if tokens_ahead >= 64:
            old = self.peak_prefill
            self.peak_prefill = rate if old is None or rate > old else _mixed(old, rate, 0.02)

    def note_output(self, seconds: float, num_tokens: int) -> None:
        """So many tokens came in so long after the first."""
        if num_tokens > 0:
            self.tpot = _mixed(self.tpot, seconds / num_tokens)


def _mixed(old: float | None, new: float, alpha: float = ALPHA) -> float:
    return new if old is None else old + alpha * (new - old)
