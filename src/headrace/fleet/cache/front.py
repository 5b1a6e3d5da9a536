"""The response cache: ask what may be done for a request, look it up, hear its answer, keep it.

`serving.py` puts these together for a request.

Nothing here makes a request fail: a store that is broken is a miss, and counted.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from headrace.config.fleet.cache import CacheConfig, CacheMode
from headrace.core.clock import Clock
from headrace.core.errors import BadRequestError
from headrace.fleet.cache.answers import Answer, pack, unpack
from headrace.fleet.cache.flights import Budget, Flights
from headrace.fleet.cache.keys import Question, question
from headrace.fleet.cache.recorder import Recorder
from headrace.fleet.cache.semantic.cache import SemanticCache
from headrace.fleet.cache.store import Store, StoreError
from headrace.fleet.cache.telling import told_as_stream, told_whole
from headrace.observe import cache_metrics as names
from headrace.observe.metrics import Metrics
from headrace.web.asgi import JSON
from headrace.web.problems import HttpError
from headrace.web.streaming import CONTENT_TYPE

T = TypeVar("T")

log = logging.getLogger("headrace.cache")

REQUEST_HEADER: Final = "x-headrace-cache"
RESPONSE_HEADER: Final = "x-headrace-cache"
SIMILARITY_HEADER: Final = "x-headrace-cache-similarity"
#: Answers that may wait to be kept; more are let go.
_MAX_KEEPING: Final = 256
#: Longer answers are read and written in a thread.
_SHORT: Final = 64 * 1024
#: Seconds that clocks of gateways may differ.
_SKEW: Final = 60.0


class Result(StrEnum):
    """What the cache did for a request: the header of its answer, and a label of the count."""

    HIT = "hit"
    MISS = "miss"
    SHARED = "shared"
    """The answer to an identical request that was in flight."""
    BYPASS = "bypass"
    SEMANTIC = "semantic"
    """A hit by meaning; its header says hit."""


class Inquiry(Struct, frozen=True, kw_only=True):
    """What the cache may do for one request."""

    question: Question
    mode: CacheMode
    may_look: bool
    may_keep: bool
    may_share: bool


class Hit(Struct, frozen=True, kw_only=True):
    """An answer from the cache."""

    content_type: str
    headers: dict[str, str]
    body: bytes
    """All events of a stream, its end included."""
    answer: Answer
    result: Result = Result.HIT


class ResponseCache:
    """One gateway's. Give it to the event loop that it was made on; `close` it."""

    def __init__(
        self,
        config: CacheConfig,
        store: Store,
        clock: Clock,
        metrics: Metrics,
        model_label: Callable[[str], str] = str,
        version_of: Callable[[str], str] = lambda _: "",
    ) -> None:
        """`model_label` is a model's name in metrics; `version_of` says what is deployed of it now."""
        self._config = config
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._label = model_label
        self._version_of = version_of
        self._keeping: set[asyncio.Task[None]] = set()
        self._semantic: SemanticCache | None = None
        self._heard = Budget(config.max_flights_bytes)
        self.flights = Flights(
            max_bytes=config.max_flight_bytes, max_total_bytes=config.max_flights_bytes
        )

    def attach(self, semantic: SemanticCache) -> None:
        """Look for questions by meaning too. It finds its answers here, and is closed with this."""
        self._semantic = semantic

    def ask(
        self,
        *,
        path: str,
        body: Mapping[str, Any],
        tenant: str,
        model: str,
        served: str = "",
        header: str | None = None,
        key_mode: CacheMode = CacheMode.AUTO,
    ) -> Inquiry | None:
        """What may be done; None where the route is not cached. A key's `bypass` cannot be overruled.

        `served` is the model whose deployed versions count; empty: none do, as where `model` names one.
        Raises BadRequestError for a header that says nothing we know.
        """
        mode = _mode(header, key_mode)
        asked = question(
            path=path,
            body=body,
            tenant=tenant,
            model=model,
            version=self._version_of(served) if served else "",
            namespace=self._config.namespace,
        )
        if asked is None:
            return None
        is_on = self._config.enabled and mode is not CacheMode.BYPASS
        is_wanted = is_on and (asked.is_deterministic or mode is not CacheMode.AUTO)
        return Inquiry(
            question=asked,
            mode=mode,
            may_look=is_wanted and mode is not CacheMode.REFRESH,
            may_keep=is_wanted,
            may_share=is_wanted and mode is not CacheMode.REFRESH and self._config.single_flight,
        )

    async def lookup(self, inquiry: Inquiry) -> Hit | None:
        """The answer, told as it was asked for. Raises HttpError 504 if the request wants nothing else."""
        hit = None
        if inquiry.may_look:
            started = self._clock.monotonic()
            hit = await self._find(inquiry.question)
            if hit is None and self._semantic is not None and self._semantic.answers:
                hit = await self._sought(self._semantic, inquiry.question)
            self._metrics.histogram(names.CACHE_LOOKUP_TIME, ()).observe(
                self._clock.monotonic() - started
            )
        if hit is None and inquiry.mode is CacheMode.ONLY:
            raise HttpError(504, "The answer is not in the cache, and nothing else was asked for.")
        return hit

    def recorder(self, inquiry: Inquiry) -> Recorder | None:
        """To hear an answer with; None where it would not be kept."""
        if not inquiry.may_keep:
            return None
        return Recorder(inquiry.question, self._config.max_entry_bytes, self._heard)

    def keep_soon(self, inquiry: Inquiry, recorder: Recorder) -> None:
        """Keep what was heard, if it is good; nobody waits for it."""
        if len(self._keeping) >= _MAX_KEEPING:
            self._metrics.add(names.CACHE_STORES, ("dropped",))
            recorder.close()
            return
        task = asyncio.create_task(self._keep(inquiry.question, recorder))
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)

    def count(self, inquiry: Inquiry, result: Result) -> None:
        """One request more."""
        self._metrics.add(names.CACHE_REQUESTS, (self._label(inquiry.question.model), result))

    async def find(self, key: bytes) -> Answer | None:
        """The answer under a key; None when it is gone. Raises StoreError."""
        try:
            stored = await self._store.get(key)
        except StoreError as error:
            self._failed(error)
            raise
        return await _in_time(stored, lambda: unpack(stored)) if stored is not None else None

    def tell(self, question: Question, answer: Answer) -> Hit | None:
        """The answer as this question wants it; None if it cannot be told so."""
        if not answer.can_tell(is_stream=question.is_stream, with_usage=question.with_usage):
            return None
        seconds = self._clock.wall() - answer.stored_at
        if not -_SKEW <= seconds <= self._config.ttl:
            return None  # the clock was wrong when it was kept, or answers may not be told for so long any more
        answer_id = _new_id(question.path)
        age = max(0, int(seconds))
        body = (
            b"".join(told_as_stream(answer, answer_id, with_usage=question.with_usage))
            if question.is_stream
            else told_whole(answer, answer_id)
        )
        return Hit(
            content_type=CONTENT_TYPE if question.is_stream else JSON,
            headers={RESPONSE_HEADER: Result.HIT, "age": str(age)},
            body=body,
            answer=answer,
        )

    async def forget(self) -> None:
        """Everything. Raises StoreError."""
        await self._store.forget()

    async def update_gauges(self) -> None:
        """Before metrics are read."""
        self._metrics.set(names.CACHE_FLIGHTS, (), self.flights.num_flights)
        self._metrics.set(names.CACHE_FLIGHT_BYTES, (), self.flights.held_bytes)
        try:
            size = await self._store.size()
        except StoreError as error:
            self._failed(error)
            return
        if size is not None:
            self._metrics.set(names.CACHE_ENTRIES, (), size[0])
            self._metrics.set(names.CACHE_BYTES, (), size[1])

    async def settle(self) -> None:
        """Until everything that was to be kept is."""
        while self._keeping:
            await asyncio.wait(self._keeping)

    async def close(self) -> None:
        """Keep what is about to be, then give the store back."""
        await self.settle()
        if self._semantic is not None:
            self._semantic.close()
        await self._store.close()

    async def _find(self, question: Question) -> Hit | None:
        try:
            stored = await self._store.get(question.key)
        except StoreError as error:
            self._failed(error)
            return None
        if stored is None:
            return None

        def told() -> Hit | None:
            answer = unpack(stored)
            return self.tell(question, answer) if answer is not None else None

        return await _in_time(stored, told)

    async def _sought(self, semantic: SemanticCache, question: Question) -> Hit | None:
        found = await semantic.seek(question)
        if found is None:
            return None
        hit = await asyncio.to_thread(self.tell, question, found[0])  # it may be long
        if hit is None:
            return None
        headers = {**hit.headers, SIMILARITY_HEADER: f"{found[1]:.4f}"}
        return msgspec.structs.replace(hit, headers=headers, result=Result.SEMANTIC)

    async def _keep(self, question: Question, recorder: Recorder) -> None:
        if recorder.is_too_large:
            self._metrics.add(names.CACHE_STORES, ("too_large",))
            return
        try:
            await self._keep_heard(question, recorder)
        finally:
            recorder.close()  # not before the store has it: a slow one must not have us hold more and more

    async def _keep_heard(self, question: Question, recorder: Recorder) -> None:
        now, semantic = self._clock.wall(), self._semantic

        def packed() -> tuple[Answer | None, bytes] | None:
            answer = recorder.answer(now)
            if answer is None:
                return None
            # Read, it is several times as large as what is stored.
            return (answer if semantic is not None else None), pack(answer)

        found = await asyncio.to_thread(packed)
        if found is None:
            self._metrics.add(names.CACHE_STORES, ("unfit",))
            return
        answer, stored = found
        recorder.hold(len(stored))
        try:
            await self._store.put(question.key, stored, self._config.ttl)
        except StoreError as error:
            self._failed(error)
            return
        self._metrics.add(names.CACHE_STORES, ("kept",))
        if semantic is not None and answer is not None:
            await semantic.learn(question, answer)

    def _failed(self, error: StoreError) -> None:
        self._metrics.add(names.CACHE_ERRORS, ())
        log.debug("The cache's store failed: %s", error)


async def _in_time(stored: bytes, read: Callable[[], T]) -> T:
    """What is long is not read on the event loop."""
    return read() if len(stored) <= _SHORT else await asyncio.to_thread(read)


def _mode(header: str | None, key_mode: CacheMode) -> CacheMode:
    if header is None or key_mode is CacheMode.BYPASS:
        return key_mode
    try:
        return CacheMode(header.strip().lower())
    except ValueError:
        raise BadRequestError(
            f"{REQUEST_HEADER} must be {', '.join(CacheMode)}, not '{header[:40]}'.",
            param=REQUEST_HEADER,
        ) from None


def _new_id(path: str) -> str:
    prefix = "chatcmpl" if path == "/v1/chat/completions" else "cmpl"
    return f"{prefix}-{secrets.token_hex(16)}"
