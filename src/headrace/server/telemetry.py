"""The pace of one answer's choices, from its events: `timings` and `prompt_progress` in llama.cpp's words.

Reports of progress come with the engine's steps. The first says what the cache gave, the last that the prompt is
there; a prompt that fits one step has just these two, together with its first token.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct

from headrace.api.fields import GenerationFields
from headrace.api.telemetry import PromptProgress, Timings
from headrace.core.clock import Clock
from headrace.core.events import TokenEvent
from headrace.core.request import Request


class Report(Struct, frozen=True):
    """One report of a prompt's progress."""

    progress: PromptProgress
    timings: Timings


#: Makes the objects of a stream that tell of a choice's progress.
Write = Callable[[int, Report], list[bytes]]
#: Begins telemetry for whoever writes it, where it is wanted.
Begin = Callable[[Write], "Telemetry | None"]


def silent(_write: Write) -> None:
    """Nothing is told of the answer's pace."""


class Telemetry:
    """Of all choices of an answer. Not thread-safe."""

    def __init__(
        self,
        requests: Sequence[Request],
        clock: Clock,
        *,
        per_token: bool,
        has_progress: bool,
        write: Write,
    ) -> None:
        """`write` makes the objects of a stream that tell of progress."""
        self.per_token = per_token
        """Each piece of a stream has the timings so far."""
        self.write = write
        self._clock = clock
        self._has_progress = has_progress
        self._paces = [_Pace(r.num_prompt_tokens) for r in requests for _ in range(r.n)]

    def observe(self, choice: int, event: TokenEvent) -> list[Report]:
        """Take in an event; the reports of progress that are due with it."""
        now = self._clock.monotonic()
        pace = self._paces[choice]
        reports = pace.progress(event, now) if self._has_progress else []
        pace.take(event, now)
        return reports

    def timings(self, choice: int) -> Timings:
        """Of a choice so far."""
        return self._paces[choice].timings()


class _Pace:
    """One choice."""

    def __init__(self, num_prompt: int) -> None:
        self._num_prompt = num_prompt
        self._num_cached = 0
        self._num_made = 0
        self._num_told = -1
        """Of the prompt, in the last report."""
        self._started: float | None = None
        self._first = 0.0
        """When the first token came."""
        self._last = 0.0

    def take(self, event: TokenEvent, now: float) -> None:
        self._begin(event, now)
        if not event.token_ids:
            return
        if not self._num_made:
            times = event.times
            self._first = times.first_token if times is not None and times.first_token else now
        self._num_made += len(event.token_ids)
        self._last = now

    def progress(self, event: TokenEvent, now: float) -> list[Report]:
        has_news = event.num_prompt_computed or event.token_ids
        if self._num_made or not has_news:
            return []
        self._begin(event, now)
        done = event.num_prompt_computed or self._num_prompt
        reports = []
        for count, seconds in ((self._num_cached, 0.0), (done, now - (self._started or now))):
            if count > self._num_told:
                self._num_told = count
                reports.append(self._report(count, max(0.0, seconds)))
        return reports

    def timings(self) -> Timings:
        if not self._num_made:
            return _timings(self._num_cached, 0, 0.0, 0, 0.0)
        prompt = max(0.0, self._first - (self._started or self._first))
        made = max(0.0, self._last - self._first) if self._num_made > 1 else 0.0
        num_computed = self._num_prompt - self._num_cached
        return _timings(self._num_cached, num_computed, prompt, self._num_made, made)

    def _begin(self, event: TokenEvent, now: float) -> None:
        self._num_cached = max(self._num_cached, event.num_cached_tokens)
        if event.times is not None and event.times.first_scheduled:
            self._started = event.times.first_scheduled
        elif self._started is None:
            self._started = now

    def _report(self, count: int, seconds: float) -> Report:
        progress = PromptProgress(
            total=self._num_prompt,
            cache=self._num_cached,
            processed=count,
            time_ms=round(1e3 * seconds),
        )
        computed = count - self._num_cached
        return Report(progress, _timings(self._num_cached, computed, seconds, 0, 0.0))


def telemetry_of(
    fields: GenerationFields, requests: Sequence[Request], clock: Clock, write: Write
) -> Telemetry | None:
    """What a request of another dialect asks to be told; None: nothing."""
    has_progress = bool(fields.return_progress and fields.stream)
    if not (fields.timings_per_token or has_progress):
        return None
    per_token = bool(fields.timings_per_token)
    return Telemetry(requests, clock, per_token=per_token, has_progress=has_progress, write=write)


def _timings(
    num_cached: int, num_prompt: int, prompt: float, num_made: int, made: float
) -> Timings:
    # The first token costs no step of its own.
    num_steps = max(0, num_made - 1)
    prompt_ms, made_ms = 1e3 * prompt, 1e3 * made
    return Timings(
        cache_n=num_cached,
        prompt_n=num_prompt,
        prompt_ms=prompt_ms,
        prompt_per_token_ms=prompt_ms / num_prompt if num_prompt else 0.0,
        prompt_per_second=1e3 / prompt_ms * num_prompt if prompt_ms else 0.0,
        predicted_n=num_made,
        predicted_ms=made_ms,
        predicted_per_token_ms=made_ms / num_steps if num_steps else 0.0,
        predicted_per_second=1e3 / made_ms * num_steps if made_ms else 0.0,
    )
