"""Requests of the last window, as they come and end: rates, lengths, latencies. Pure: time is told to it.

Bounded whatever comes: rates are kept in one cell a second, latencies as `latencies.py` bounds them.
"""

from collections import deque
from typing import Final, NamedTuple

from msgspec import Struct

from headrace.config.fleet.scaling import Objectives
from headrace.fleet.autoscaler.latencies import Latencies, Sample

#: Share of its TTFT that a request of a burst may wait for its turn; the rest is for its own prompt.
_PATIENCE: Final = 0.65


class Ended(Struct, frozen=True, kw_only=True):
    """One request that was answered."""

    arrival: float
    """`Clock.monotonic`."""
    prompt_tokens: int
    """Those that were not cached."""
    output_tokens: int
    asked_prompt: int = 0
    """What `arrived` was told of its prompt, and of its answer; 0: not known."""
    asked_output: int = 0
    ttft: float | None = None
    """Seconds from its arrival."""
    latency: float = 0.0
    """Seconds from its arrival to its end."""
    itl: float | None = None
    """Seconds that 95 of 100 gaps between its tokens did not exceed, if they were seen; else their mean stands for it."""
    is_sample: bool = True
    """Its latencies count; not if it was served by a replica that was warming up, or waited for one to start."""

    @property
    def tpot(self) -> float | None:
        """Seconds per token behind the first."""
        if self.ttft is None or self.output_tokens < 2:
            return None
        return max(0.0, self.latency - self.ttft) / (self.output_tokens - 1)


class TrafficSummary(NamedTuple):
    """As `Signals` has them."""

    arrivals_per_second: float | None
    incoming_tokens_per_second: float | None
    burst_tokens_per_second: float | None
    burst_requests: int | None
    processed_tokens_per_second: float | None
    input_tokens: float | None
    output_tokens: float | None
    ttft_p95: float | None
    tpot_p95: float | None
    itl_p95: float | None
    slo_attainment: float | None
    idle_seconds: float


class _Burst(NamedTuple):
    """What came in the stretch that asks for the highest rate."""

    rate: float
    """Weighted tokens a second."""
    requests: int


class _Cell:
    """One second."""

    __slots__ = (
        "asked_elsewhere",
        "asked_here",
        "ended",
        "expected_tokens",
        "output_tokens",
        "processed",
        "prompt_tokens",
        "requests",
        "second",
    )

    def __init__(self, second: int) -> None:
        self.second = second
        self.requests = 0
        self.prompt_tokens = 0.0
        self.expected_tokens = 0.0
        self.ended = 0
        self.output_tokens = 0.0
        self.processed = 0.0
        """Weighted."""
        self.asked_here = 0.0
        self.asked_elsewhere = 0.0
        """Weighted, as it was expected: of requests that were answered by the group, and by others beside it."""


class Traffic:
    """Of one group of pools."""

    def __init__(
        self, now: float, window: float, *, prompt_weight: float, output_weight: float = 1.0
    ) -> None:
        """`window` in seconds; the weights are what a token counts as work."""
        self._window = window
        self._prompt_weight = prompt_weight
        self._output_weight = output_weight
        self._since = now
        self._last = now
        self._cells: deque[_Cell] = deque()
        self._latencies = Latencies()
        self._shares = _Shares()

    def arrived(self, now: float, prompt_tokens: int, expected_tokens: int) -> None:
        """A request came: its prompt, and what bounds its answer."""
        self._last = now
        cell = self._cell(now)
        cell.requests += 1
        cell.prompt_tokens += prompt_tokens
        cell.expected_tokens += expected_tokens

    def ended(self, now: float, request: Ended) -> None:
        """A request was answered."""
        self._last = now
        self._shares.note(request)
        cell = self._cell(now)
        cell.ended += 1
        cell.output_tokens += request.output_tokens
        cell.asked_here += self._asked(request.asked_prompt, request.asked_output)
        self._spread(now, request)
        if request.is_sample:
            tpot = request.tpot
            itl = tpot if request.itl is None else request.itl
            self._latencies.note(Sample(now, request.ttft, tpot, itl))

    def ended_elsewhere(self, now: float, asked_prompt: int, asked_output: int) -> None:
        """A request was answered by a replica that serves the model and is not the group's: so much comes to others.

        What is answered is told at its end only, so that it is a share that is left out, and not each request.
        """
        self._cell(now).asked_elsewhere += self._asked(asked_prompt, asked_output)

    def touch(self, now: float) -> None:
        """Something waits or runs: it is not idle."""
        self._last = now

    def summary(self, now: float, slo: Objectives) -> TrafficSummary:
        """Of the window that ends now."""
        self._forget(now)
        span = min(self._window, now - self._since)
        is_known = span >= min(10.0, self._window / 2)
        requests = sum(cell.requests for cell in self._cells)
        ended = sum(cell.ended for cell in self._cells)
        prompt = sum(cell.prompt_tokens for cell in self._cells)
        expected = sum(cell.expected_tokens for cell in self._cells)
        processed = sum(cell.processed for cell in self._cells)
        prompt *= self._shares.of_prompt
        here = self._share_here()
        share = self._shares.of_output if expected else 1.0
        incoming = burst = None
        if is_known and share is not None:
            incoming = here * self._work(prompt, expected * share) / span
        # Where prompts are no work, the TTFT is others' matter.
        has_seen = is_known or requests > 0
        if slo.ttft is not None and share is not None and has_seen and self._prompt_weight:
            burst = self._burst(now, _PATIENCE * slo.ttft, share)
        latencies = self._latencies
        return TrafficSummary(
            arrivals_per_second=here * requests / span if is_known else None,
            incoming_tokens_per_second=incoming,
            burst_tokens_per_second=None if burst is None else here * burst.rate,
            burst_requests=None if burst is None else burst.requests,
            processed_tokens_per_second=processed / span if is_known else None,
            input_tokens=prompt / requests if requests else None,
            output_tokens=sum(c.output_tokens for c in self._cells) / ended if ended else None,
            ttft_p95=latencies.ttft.p95(),
            tpot_p95=latencies.tpot.p95(),
            itl_p95=latencies.itl.p95(),
            slo_attainment=latencies.attainment(slo),
            idle_seconds=max(0.0, now - self._last),
        )

    def _work(self, prompt_tokens: float, output_tokens: float) -> float:
        return self._prompt_weight * prompt_tokens + self._output_weight * output_tokens

    def _burst(self, now: float, patience: float, share: float) -> "_Burst":
        """The least rate at which all that came in the last t seconds is done, answers too, within t + `patience`, for every t
        of the window: a bound on the backlog of a queue that is served at a constant rate (Cruz, A Calculus for Network
        Delay, 1991). It does not depend on what there was to serve it.
        """
        prompt = expected = 0.0
        requests, most = 0, _Burst(0.0, 0)
        for cell in reversed(self._cells):
            requests += cell.requests
            prompt += cell.prompt_tokens
            expected += cell.expected_tokens
            work = self._work(prompt * self._shares.of_prompt, expected * share)
            rate = work / (max(0.0, now - cell.second) + patience)
            if rate > most.rate:
                most = _Burst(rate, requests)
        return most

    def _asked(self, prompt_tokens: int, output_tokens: int) -> float:
        return max(1.0, self._work(prompt_tokens, output_tokens))

    def _share_here(self) -> float:
        """1 where nobody else is seen to serve."""
        here = sum(cell.asked_here for cell in self._cells)
        elsewhere = sum(cell.asked_elsewhere for cell in self._cells)
        return here / (here + elsewhere) if elsewhere else 1.0

    def _cell(self, now: float) -> _Cell:
        second = int(now)
        if not self._cells or self._cells[-1].second < second:
            self._cells.append(_Cell(second))
            self._forget(now)
        return self._cells[-1]

    def _spread(self, now: float, request: Ended) -> None:
        """Its answer was made from its first token on, and not at its end: a long one counts where it was made."""
        work = self._work(request.prompt_tokens, request.output_tokens)
        begin = request.arrival + (request.ttft if request.ttft is not None else 0.0)
        first, cells = int(begin), []
        for cell in reversed(self._cells):
            if cell.second < first:
                break
            cells.append(cell)
        cells = cells or [self._cells[-1]]
        made = len(cells) / max(1.0, now - begin) if now > begin else 1.0
        part = work * min(1.0, made) / len(cells)
        for cell in cells:
            cell.processed += part

    def _forget(self, now: float) -> None:
        oldest = now - self._window
        while self._cells and self._cells[0].second < int(oldest):
            self._cells.popleft()
        self._latencies.forget(oldest)


class _Shares:
    """What of prompts and bounds really comes, by requests that have ended: half is forgotten every 200 of them."""

    _KEEP: Final = 0.5 ** (1 / 200)

    def __init__(self) -> None:
        self._asked = [0.0, 0.0]
        self._real = [0.0, 0.0]

    def note(self, request: Ended) -> None:
        pairs = (
            (request.asked_prompt, request.prompt_tokens),
            (request.asked_output, request.output_tokens),
        )
        for place, (asked, real) in enumerate(pairs):
            if asked > 0:
                self._asked[place] = self._KEEP * self._asked[place] + asked
                self._real[place] = self._KEEP * self._real[place] + real

    @property
    def of_prompt(self) -> float:
        """Prompts are counted well when they come: 1 until it is known how much of them is cached."""
        return self._real[0] / self._asked[0] if self._asked[0] else 1.0

    @property
    def of_output(self) -> float | None:
        """None: bounds say little, and no request has ended yet."""
        return self._real[1] / self._asked[1] if self._asked[1] else None
