"""What the routes about texts share: admit → prepare → submit → collect → answer, never as a stream."""

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Sequence
from operator import mul
from typing import Any

from msgspec import Struct

from headrace.api.embeddings import TextUsage
from headrace.core.errors import (
    DeadlineExceededError,
    HeadraceError,
    OverloadedError,
    RequestCancelledError,
    UnavailableError,
)
from headrace.core.events import FinishReason, TokenEvent
from headrace.core.request import Request
from headrace.preprocess.texts import ComparedTexts
from headrace.server.admission import Ticket
from headrace.server.auth import is_trusted_peer
from headrace.server.calls import Call, check_media_type, log_body
from headrace.server.inner import is_background
from headrace.server.replica import Replica
from headrace.server.served_model import ServedModel
from headrace.web.asgi import App, Receive, Scope, Send, send_json
from headrace.web.bodies import read_body
from headrace.web.guard import owner_of
from headrace.web.problems import error_named
from headrace.web.streaming import watch_disconnect

#: float32 of each request, little endian.
Vectors = Sequence[bytes]


class TextPlan(Struct, frozen=True, kw_only=True):
    """What is asked of the engine, and how its vectors become an answer."""

    requests: tuple[Request, ...]
    answer: Callable[[Vectors], Any]
    """A struct; called with the vectors in the order of the requests, on any thread."""

    @property
    def num_tokens(self) -> int:
        """Of all requests."""
        return sum(request.num_prompt_tokens for request in self.requests)


#: Decodes and prepares one call.
PrepareTexts = Callable[[Call], Awaitable[tuple[ServedModel, TextPlan]]]


def answering_texts(replica: Replica, prepare: PrepareTexts) -> App:
    """The handler of a route about texts."""

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        is_peer = is_trusted_peer(scope, replica.config.trusted_peer_token)
        check_media_type(scope)
        replica.admission.check_open()
        with replica.bodies.reserve(scope) as reservation:
            body = await read_body(receive, reservation)
            if body is None:
                return
            ticket = replica.admission.enter(len(body), is_background=is_background(scope))
            try:
                log_body(replica, body)
                model, plan = await prepare(Call(replica, body, scope, is_peer, ticket.held))
            except BaseException:
                ticket.close()
                raise
        ticket.resize(plan.num_tokens)
        try:
            await _TextExchange(replica, model, plan, ticket).run(scope, receive, send)
        finally:
            ticket.close()

    return respond


class _TextExchange:
    """Submits a plan and answers it; whatever happens, the engine is rid of it afterwards."""

    def __init__(
        self, replica: Replica, model: ServedModel, plan: TextPlan, ticket: Ticket
    ) -> None:
        self._replica = replica
        self._model = model
        self._plan = plan
        self._ticket = ticket
        self._is_gone = False
        self._events = model.client.submit(*plan.requests)
        self._recorders = {
            request.request_id: model.request_metrics.sequence(
                request.arrival_time, request.num_prompt_tokens
            )
            for request in plan.requests
        }

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer. Raises what went wrong."""
        watcher = asyncio.create_task(watch_disconnect(receive, self._leave))
        own = [scope["headrace.request_id"], self._plan.requests[0].request_id.rpartition("-")[0]]
        try:
            with self._replica.open_requests.listed(own, owner_of(scope), self._abort):
                vectors = await self._collect()
            if vectors is None:
                return
            size = sum(map(len, vectors))
            answer = await self._replica.workers.run(size, self._plan.answer, vectors)
            await send_json(send, answer)
        finally:
            watcher.cancel()
            self._events.close()
            for recorder in self._recorders.values():
                recorder.finish(FinishReason.CANCELLED)
            if self._is_gone:
                scope["headrace.status"] = 499

    async def _collect(self) -> list[bytes] | None:
        """Every request's vector; None when the client is gone."""
        found: dict[str, bytes] = {}
        while batch := await self._events.next_batch():
            for event in batch:
                recorder = self._recorders.get(event.request_id)
                if event.finish is None or recorder is None:
                    continue
                recorder.observe(event)
                recorder.finish(event.finish)
                if event.vector is None:
                    raise self._error_of(event)
                self._ticket.start()
                found[event.request_id] = event.vector
        if self._is_gone:
            return None
        return [found[request.request_id] for request in self._plan.requests]

    def _error_of(self, event: TokenEvent) -> HeadraceError:
        if event.finish is FinishReason.ERROR:
            error = error_named(event.error_kind, event.error or "The engine failed.")
            if isinstance(error, OverloadedError):  # it waited too long; the engine knows no pace
                error.retry_after = self._replica.admission.retry_after()
            return error
        if event.finish is FinishReason.SHUTDOWN:
            return UnavailableError("The server is shutting down; send the request elsewhere.")
        if event.finish is FinishReason.TIMEOUT:
            return DeadlineExceededError("The request's time ran out.")
        return RequestCancelledError("The request was cancelled.")

    def _abort(self) -> None:
        for request in self._plan.requests:
            self._model.client.cancel(request.request_id)

    def _leave(self) -> None:
        self._is_gone = True
        self._events.close()


def usage_of(requests: Sequence[Request]) -> TextUsage:
    """Tokens of all requests."""
    count = sum(request.num_prompt_tokens for request in requests)
    return TextUsage(prompt_tokens=count, total_tokens=count)


def floats(vector: bytes) -> list[float]:
    """The numbers of a vector, as the shortest decimals that are the same float32: nine digits suffice."""
    return [float(f"{number:.9g}") for number in _numbers(vector)]


def scores_of(texts: ComparedTexts, vectors: Vectors) -> list[float]:
    """Of each pair: the score that the model gave, or the cosine of two vectors of length 1."""
    numbers: dict[int, array[float]] = {}
    scores = []
    for first, second in texts.places:
        a = _once(numbers, vectors, first)
        if first == second and len(a) == 1:
            scores.append(a[0])
            continue
        b = _once(numbers, vectors, second)
        scores.append(min(1.0, max(-1.0, sum(map(mul, a, b)))))
    return scores


def _once(numbers: "dict[int, array[float]]", vectors: Vectors, place: int) -> "array[float]":
    if place not in numbers:
        numbers[place] = _numbers(vectors[place])
    return numbers[place]


def _numbers(vector: bytes) -> "array[float]":
    made = array("f")
    made.frombytes(vector)
    return made
