"""Texts that become vectors: each runs whole in one step, beside no sequences, and leaves nothing behind.

    add -> waiting -> schedule -> plan ... result -> commit -> events

One plan is in flight at a time. After a failed step its texts run alone, one a step, and one that fails
alone ends with an error.
"""

from bisect import insort
from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct

from headrace.core.errors import (
    BadRequestError,
    DeadlineExceededError,
    HeadraceError,
    InternalError,
    NotFoundError,
    OverloadedError,
)
from headrace.core.events import FinishReason, RequestTimes, TokenEvent
from headrace.core.pooling import PoolingParams
from headrace.core.request import MEDIA_TOKEN_ID, Request, TokenSegment
from headrace.core.stats import EngineStats
from headrace.core.step import PlanText, StepPlan, StepResult
from headrace.engine.scheduler.intake import no_adapters
from headrace.engine.scheduler.sequence import prompt_token_ids
from headrace.engine.scheduler.totals import Totals


class TextBounds(NamedTuple):
    """What a step and a text may have."""

    max_tokens: int
    """Tokens of one step; a longer text has a step of its own."""
    max_texts: int
    max_text_tokens: int


class _Text(Struct, eq=False):
    """One request on its way."""

    request: Request
    token_ids: list[int]
    queued: float
    rank: tuple[float, int]
    adapter_index: int
    is_suspect: bool = False
    """A step with it failed."""
    started: float = 0.0


class TextLane:
    """The queue of one model's texts. Not thread-safe. All times are `Clock.monotonic` seconds, passed in."""

    def __init__(
        self,
        bounds: TextBounds,
        totals: Totals,
        *,
        aging: float,
        adapters: Callable[[Request], int] = no_adapters,
    ) -> None:
        """`totals` are the scheduler's, who counts steps too; `aging` is seconds per priority level;
        `adapters` tells the number of a request's adapter, -1 where that is not loaded.
        """
        self._adapters = adapters
        self._bounds = bounds
        self._totals = totals
        self._aging = aging
        self._texts: dict[str, _Text] = {}
        self._waiting: list[_Text] = []
        self._flight: list[_Text] = []
        self._num_arrivals = 0
        self.is_waiting = False
        """Some text could run in the next step: an attribute, as every step asks."""

    @property
    def has_work(self) -> bool:
        """Some text waits or runs."""
        return bool(self._waiting or self._flight)

    def knows(self, request_id: str) -> bool:
        """It waits or runs here."""
        return request_id in self._texts

    def add(self, request: Request, now: float) -> list[TokenEvent]:
        """Take a text in. Returns its end when it cannot run."""
        self._totals.started += 1
        # Vectors are refused, and claim any length.
        is_text = all(isinstance(segment, TokenSegment) for segment in request.prompt)
        token_ids = prompt_token_ids(request) if is_text else [MEDIA_TOKEN_ID]
        adapter_index = 0 if request.adapter is None else self._adapters(request)
        error = self._refusal(request, token_ids, adapter_index)
        if error is not None:
            return [self._ended(request, FinishReason.ERROR, error)]
        self._num_arrivals += 1
        aged = now / self._aging if self._aging > 0 else 0.0
        rank = (request.priority + aged, self._num_arrivals)
        text = _Text(request, token_ids, now, rank, adapter_index)
        self._texts[request.request_id] = text
        self._wait(text)
        return []

    def cancel(self, request_id: str) -> list[TokenEvent]:
        """End a text. Unknown or ended: nothing happens. What its step gives is dropped."""
        text = self._texts.pop(request_id, None)
        if text is None:
            return []
        if text in self._waiting:
            self._waiting.remove(text)
            self.is_waiting = bool(self._waiting)
        return [self._ended(text.request, FinishReason.CANCELLED)]

    def schedule(self, now: float) -> tuple[StepPlan | None, list[TokenEvent]]:
        """The next plan, if any, and the ends of texts whose time ran out."""
        events = self._expire(now)
        texts = self._next()
        if not texts:
            return None, events
        for text in texts:
            text.started = now
            self._waiting.remove(text)
        self.is_waiting = bool(self._waiting)
        self._flight = texts
        self._totals.steps += 1
        planned = tuple(
            [PlanText(t.token_ids, _pooling(t.request), t.adapter_index) for t in texts]
        )
        return StepPlan(step_id=self._totals.steps, rows=(), texts=planned), events

    def commit(self, result: StepResult, now: float) -> list[TokenEvent]:
        """Take in the result of the plan in flight."""
        flight, self._flight = self._flight, []
        if len(result.texts) != len(flight):
            raise InternalError("A step result does not belong to the plan of texts.")
        events: list[TokenEvent] = []
        for text, given in zip(flight, result.texts, strict=True):
            if self._texts.get(text.request.request_id) is not text:
                continue  # cancelled meanwhile
            del self._texts[text.request.request_id]
            self._totals.prompt_tokens += len(text.token_ids)
            if given.error is not None:
                error = InternalError(given.error)
                events.append(self._ended(text.request, FinishReason.ERROR, error))
                continue
            times = RequestTimes(text.request.arrival_time, text.queued, text.started, now)
            self._totals.finished[FinishReason.STOP.value] += 1
            events.append(
                TokenEvent(
                    text.request.request_id,
                    0,
                    finish=FinishReason.STOP,
                    times=times,
                    vector=given.vector,
                )
            )
        if flight:
            self._totals.step_seconds += now - flight[0].started
        return events

    def recover(self, reason: str) -> list[TokenEvent]:
        """The plan in flight failed."""
        flight, self._flight = self._flight, []
        live = [text for text in flight if self._texts.get(text.request.request_id) is text]
        if len(flight) == 1 and live:
            request = live[0].request
            del self._texts[request.request_id]
            return [self._ended(request, FinishReason.ERROR, InternalError(reason))]
        for text in live:
            text.is_suspect = True
            self._wait(text)
        return []

    def fail_all(self, reason: str) -> list[TokenEvent]:
        """End everything with an error and forget the plan in flight."""
        texts = list(self._texts.values())
        self._texts.clear()
        self._waiting.clear()
        self._flight = []
        self.is_waiting = False
        return [
            self._ended(text.request, FinishReason.ERROR, InternalError(reason)) for text in texts
        ]

    def add_to(self, stats: EngineStats, now: float) -> dict[str, int | float]:
        """The gauges of `stats` that texts add to, with them."""
        oldest = max((now - text.queued for text in self._waiting), default=0.0)
        return {
            "num_running": stats.num_running + len(self._flight),
            "num_waiting": stats.num_waiting + len(self._waiting),
            "waiting_tokens": stats.waiting_tokens + sum(len(t.token_ids) for t in self._waiting),
            "oldest_wait": max(stats.oldest_wait, oldest),
        }

    # ---- inside --------------------------------------------------------------------------------

    def _wait(self, text: _Text) -> None:
        insort(self._waiting, text, key=lambda waiting: waiting.rank)
        self.is_waiting = True

    def _next(self) -> list[_Text]:
        """The best ranks that fit a step; a suspect has one of its own."""
        chosen: list[_Text] = []
        num_tokens = 0
        for text in self._waiting[: self._bounds.max_texts]:
            num_tokens += len(text.token_ids)
            if chosen and (num_tokens > self._bounds.max_tokens or text.is_suspect):
                break
            chosen.append(text)
            if text.is_suspect:
                break
        return chosen

    def _expire(self, now: float) -> list[TokenEvent]:
        late: list[tuple[_Text, HeadraceError]] = []
        for text in self._waiting:
            request = text.request
            if request.deadline is not None and now >= request.deadline:
                error: HeadraceError = DeadlineExceededError(
                    "The request's time ran out before its first step."
                )
            elif request.max_queue_time is not None and now >= text.queued + request.max_queue_time:
                error = OverloadedError(
                    f"The request waited longer than {request.max_queue_time:g} seconds for its "
                    "first step."
                )
            else:
                continue
            late.append((text, error))
        for text, _ in late:
            self._waiting.remove(text)
            del self._texts[text.request.request_id]
        self.is_waiting = bool(self._waiting)
        return [self._ended(text.request, FinishReason.ERROR, error) for text, error in late]

    def _refusal(
        self, request: Request, token_ids: list[int], adapter_index: int
    ) -> HeadraceError | None:
        limit = self._bounds.max_text_tokens
        if self.knows(request.request_id):
            return BadRequestError(f"A request with the id '{request.request_id}' is running.")
        if request.n != 1:
            return BadRequestError("A text has one vector: n must be 1.", param="n")
        if adapter_index < 0:
            return NotFoundError("The adapter is not loaded.")
        if not token_ids:
            return BadRequestError("The text is empty.", param="input")
        if len(token_ids) > limit:
            return BadRequestError(
                f"The text has {len(token_ids)} tokens; this model takes {limit}.", param="input"
            )
        if min(token_ids) < 0 or max(token_ids) >= MEDIA_TOKEN_ID:
            return BadRequestError("The text holds a token id out of range.", param="input")
        return None

    def _ended(
        self, request: Request, finish: FinishReason, error: HeadraceError | None = None
    ) -> TokenEvent:
        self._totals.finished[finish.value] += 1
        message, kind = (None, None) if error is None else (str(error), type(error).__name__)
        return TokenEvent(request.request_id, 0, finish=finish, error=message, error_kind=kind)


def _pooling(request: Request) -> PoolingParams:
    assert request.pooling is not None
    return request.pooling
