"""One admitted generation: its engine requests, their events, and the client at the other end."""

import asyncio
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from headrace.api.problems import ProblemBody
from headrace.completion.respond import Delta, Responder, TextOptions
from headrace.core.errors import (
    DeadlineExceededError,
    HeadraceError,
    RequestCancelledError,
    UnavailableError,
)
from headrace.core.events import FinishReason, TokenEvent
from headrace.core.request import Request
from headrace.engine.stream import EventStream
from headrace.observe.recorder import SequenceRecorder
from headrace.server.admission import Ticket
from headrace.server.asgi import Receive, Scope, Send, send_body
from headrace.server.problems import answer_to, error_named
from headrace.server.replica import Replica, ServedModel
from headrace.server.shapes import Shape, usage_of
from headrace.server.streaming import EventStreamWriter, event, token_comment, watch_disconnect


class Plan(Struct, frozen=True, kw_only=True):
    """What is to be generated, and how it is to be told."""

    requests: tuple[Request, ...]
    shape: Shape
    options: TextOptions
    is_stream: bool
    is_peer: bool
    """A trusted peer: token ids go beside the chunks."""


class _Sequence:
    """One choice of the answer."""

    def __init__(self, choice: int, responder: Responder, recorder: SequenceRecorder) -> None:
        self.choice = choice
        self.responder = responder
        self.recorder = recorder
        self.has_begun = False


class Exchange:
    """Submits a plan and answers it; whatever happens, the engine is rid of it afterwards."""

    def __init__(self, replica: Replica, model: ServedModel, plan: Plan, ticket: Ticket) -> None:
        preparer = model.preparer
        assert preparer is not None
        self._replica = replica
        self._plan = plan
        self._ticket = ticket
        self._is_gone = False
        self._responders = [
            Responder(request, preparer.tokenizer, plan.options, collect=not plan.is_stream)
            for request in plan.requests
        ]
        # Nothing was taken if this raises, so nothing needs to be undone.
        self._events: EventStream = model.client.submit(*plan.requests)
        self._sequences = self._open_sequences(model)

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer. Raises what went wrong before the first byte was sent."""
        watcher = asyncio.create_task(watch_disconnect(receive, self._leave))
        try:
            if self._plan.is_stream:
                await self._stream(send)
            else:
                await self._answer(send)
        finally:
            watcher.cancel()
            self._events.close()
            self._ticket.close()
            for sequence in self._sequences.values():
                sequence.recorder.finish(FinishReason.CANCELLED)
            if self._is_gone:
                scope["headrace.status"] = 499

    def _open_sequences(self, model: ServedModel) -> dict[tuple[str, int], _Sequence]:
        sequences: dict[tuple[str, int], _Sequence] = {}
        for request, responder in zip(self._plan.requests, self._responders, strict=True):
            for index in range(request.n):
                recorder = model.request_metrics.sequence(
                    request.arrival_time, request.num_prompt_tokens
                )
                key = (request.request_id, index)
                sequences[key] = _Sequence(len(sequences), responder, recorder)
        return sequences

    def _leave(self) -> None:
        """The client is gone: its blocks are free before the engine's next step."""
        self._is_gone = True
        self._events.close()

    # -- whole ------------------------------------------------------------------------------------

    async def _answer(self, send: Send) -> None:
        while batch := await self._events.next_batch():
            for item in batch:
                sequence, delta = self._take(item)
                if sequence is not None and delta is not None:
                    self._raise_early(sequence, delta)
        if self._is_gone:
            return
        choices = [delta for responder in self._responders for delta in responder.choices()]
        usage = usage_of([responder.counts for responder in self._responders])
        body = self._plan.shape.whole(choices, usage)
        await send_body(send, body, headers=self._headers())

    # -- stream -----------------------------------------------------------------------------------

    async def _stream(self, send: Send) -> None:
        writer = EventStreamWriter(send, self._headers())
        while batch := await self._events.next_batch():
            parts: list[bytes] = []
            for item in batch:
                sequence, delta = self._take(item)
                if delta is None or sequence is None:
                    continue
                if not writer.has_begun and not parts:
                    self._raise_early(sequence, delta)
                parts += self._frame(sequence, delta)
            if parts:
                await writer.write(b"".join(parts))
        if self._is_gone:
            return
        last = self._plan.shape.last_chunk(usage_of([r.counts for r in self._responders]))
        if last is not None:
            await writer.write(event(last))
        await writer.end()

    def _frame(self, sequence: _Sequence, delta: Delta) -> Sequence[bytes]:
        is_first, sequence.has_begun = not sequence.has_begun, True
        parts: list[bytes] = []
        if self._plan.is_peer and delta.token_ids:
            parts.append(token_comment(sequence.choice, delta.token_ids))
        error = _error_of(delta)
        if error is not None:
            problem = answer_to(error).problem
            parts.append(event(msgspec.json.encode(ProblemBody(error=problem))))
            return parts
        usage = usage_of([responder.counts for responder in self._responders])
        chunks = self._plan.shape.chunks(sequence.choice, delta, is_first=is_first, usage=usage)
        return parts + [event(chunk) for chunk in chunks]

    # -- both -------------------------------------------------------------------------------------

    def _take(self, item: TokenEvent) -> tuple[_Sequence | None, Delta | None]:
        sequence = self._sequences.get((item.request_id, item.index))
        if sequence is None:
            return None, None
        if item.token_ids:
            self._ticket.start()
        sequence.recorder.observe(item)
        outcome = sequence.responder.push(item)
        if outcome.cancel:
            self._events.stop_sequence(item.request_id, item.index)
        delta = outcome.delta
        if delta is not None and delta.finish is not None:
            sequence.recorder.finish(delta.finish)
        return sequence, delta

    def _raise_early(self, sequence: _Sequence, delta: Delta) -> None:
        """An end before anything was said is a status, not an empty answer."""
        error = _error_of(delta)
        if error is not None:
            raise error
        if delta.finish is FinishReason.TIMEOUT and not sequence.recorder.num_tokens:
            if self._replica.is_draining:
                raise UnavailableError("The server is shutting down; send the request elsewhere.")
            raise DeadlineExceededError("The request's time ran out before its first token.")

    def _headers(self) -> dict[str, str]:
        if not self._plan.is_peer or len(self._plan.requests) != 1:
            return {}
        # With it, another replica can continue this answer token for token.
        return {"x-headrace-seed": str(self._plan.requests[0].params.seed)}


def _error_of(delta: Delta) -> HeadraceError | None:
    if delta.finish is FinishReason.ERROR:
        return error_named(delta.error_kind, delta.error or "The engine failed.")
    if delta.finish is FinishReason.CANCELLED:
        return RequestCancelledError("The request was cancelled.")
    return None
