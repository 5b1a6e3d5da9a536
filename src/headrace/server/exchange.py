"""One admitted generation: its engine requests, their events, and the client at the other end."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from msgspec import Struct

from headrace.api.usage import Usage
from headrace.completion.choice import Outcome, TextOptions
from headrace.completion.delta import Delta
from headrace.completion.respond import Responder
from headrace.core.errors import (
    DeadlineExceededError,
    HeadraceError,
    OverloadedError,
    RequestCancelledError,
    UnavailableError,
)
from headrace.core.events import FinishReason, TokenEvent
from headrace.core.request import Request
from headrace.engine.stream import EventStream
from headrace.observe.recorder import SequenceRecorder
from headrace.observe.tracing.tracer import Trace
from headrace.server.admission import Ticket
from headrace.server.replica import Replica
from headrace.server.resume import Produce
from headrace.server.seats import Seats, Sitting
from headrace.server.served_model import ServedModel
from headrace.server.shapes import Shape, problem_chunk, usage_of
from headrace.server.spans import Generation, tell_generation
from headrace.server.telemetry import Report
from headrace.web.asgi import Receive, Scope, Send, send_body
from headrace.web.problems import error_named
from headrace.web.streaming import (
    NO_EVENT,
    EventStreamWriter,
    event,
    token_comment,
    watch_disconnect,
)
from headrace.web.tracing import trace_of

log = logging.getLogger("headrace.server")


class Plan(Struct, frozen=True, kw_only=True):
    """What is to be generated, and how it is to be told."""

    requests: tuple[Request, ...]
    shape: Shape
    options: TextOptions
    is_stream: bool
    is_peer: bool
    """A trusted peer: token ids go beside the chunks."""
    detach: Callable[[Produce], bytes] | None = None
    """Has it made without its client, who gets these bytes at once; None: the client waits for the answer."""


class _Sequence:
    """One choice of the answer."""

    def __init__(self, choice: int, responder: Responder, recorder: SequenceRecorder) -> None:
        self.choice = choice
        self.responder = responder
        self.recorder = recorder
        self.sitting: Sitting | None = None
        self.reports: list[Report] = []
        """Of the prompt's progress, not told yet."""
        self.has_begun = False
        self.has_ended = False
        self._seats: Seats | None = None

    def sit_down(self, seats: Seats) -> None:
        """From now on it is among those that run."""
        self._seats = seats
        self.sitting = seats.take(self.responder.request.params.max_tokens)

    def stand_up(self) -> None:
        """It has ended; may be said several times."""
        if self._seats is not None and self.sitting is not None:
            self._seats.leave(self.sitting)
        self.sitting = None


class Exchange:
    """Submits a plan and answers it; whatever happens, the engine is rid of it afterwards."""

    def __init__(self, replica: Replica, model: ServedModel, plan: Plan, ticket: Ticket) -> None:
        preparer = model.preparer
        assert preparer is not None
        self._replica = replica
        self._model = model
        self._plan = plan
        self._ticket = ticket
        self._framing = plan.shape.framing
        self._is_gone = False
        self._error: Exception | None = None
        """What a stream ends with, after the ends of its choices."""
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
            for sequence in self._sequences.values():
                sequence.sit_down(self._replica.seats)
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
                sequence.stand_up()
            if self._is_gone:
                scope["headrace.status"] = 499
            if (trace := trace_of(scope)) is not None:
                self._tell(trace, scope["path"])

    def abort(self) -> None:
        """End what still runs, as cancelled; the answer says so."""
        for request in self._plan.requests:
            self._model.client.cancel(request.request_id)

    def _tell(self, trace: Trace, path: str) -> None:
        recorders = [sequence.recorder for sequence in self._sequences.values()]
        info = self._model.info
        generation = Generation(
            path=path,
            model=info.names[0] if info is not None else "",
            requests=self._plan.requests,
            is_stream=self._plan.is_stream,
            usage=self._usage(),
            error="" if self._error is None else type(self._error).__name__,
            ended=self._replica.clock.monotonic(),
        )
        tell_generation(trace, generation, recorders)

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
                sequence = self._sequences.get((item.request_id, item.index))
                if sequence is not None:
                    self._raise_early(sequence, self._take(sequence, item).delta)
        if self._is_gone:
            return
        choices = [delta for responder in self._responders for delta in responder.choices()]
        body = self._plan.shape.whole(choices, self._usage())
        await send_body(send, body, headers=self._headers())

    # -- stream -----------------------------------------------------------------------------------

    async def _stream(self, send: Send) -> None:
        writer = EventStreamWriter(send, self._headers(), self._framing.end)
        try:
            await self._relay(writer)
            last = self._last_words()
        except Exception as error:
            if not writer.has_begun or self._is_gone:
                raise
            # The status has gone out: what is left to be said is said in the stream.
            self._error = error
            last = self._broken_off()
        if self._is_gone:
            return
        if self._error is not None:
            last += self._failure(self._error)
        if last:
            await writer.write(last)
        await writer.end()

    async def _relay(self, writer: EventStreamWriter) -> None:
        """Everything that the choices say, their ends included."""
        while batch := await self._events.next_batch():
            parts: list[bytes] = []
            try:
                for item in batch:
                    sequence = self._sequences.get((item.request_id, item.index))
                    if sequence is None:
                        continue
                    outcome = self._take(sequence, item)
                    if not writer.has_begun and not parts:
                        self._raise_early(sequence, outcome.delta)
                    parts += self._frame(sequence, outcome)
            except Exception:
                if writer.has_begun:  # what was made is good, and may hold the ends of choices
                    await writer.write(b"".join(parts))
                raise
            if parts:
                await writer.write(b"".join(parts))

    def _frame(self, sequence: _Sequence, outcome: Outcome) -> list[bytes]:
        parts: list[bytes] = []
        if sequence.reports and self._plan.shape.telemetry is not None:
            write = self._plan.shape.telemetry.write
            parts += [self._framed(write(sequence.choice, report)) for report in sequence.reports]
        is_told = self._plan.is_peer and bool(outcome.token_ids)
        if is_told:
            # At once, whether or not their text can be shown: a peer goes on elsewhere from them.
            parts.append(token_comment(sequence.choice, outcome.token_ids))
        if outcome.delta is None:
            return [*parts, NO_EVENT] if is_told else parts
        self._error = self._error or self._error_of(outcome.delta)
        return parts + self._chunks(sequence, outcome.delta)

    def _chunks(self, sequence: _Sequence, delta: Delta) -> list[bytes]:
        is_first = not sequence.has_begun
        chunks = self._plan.shape.chunks(
            sequence.choice, delta, is_first=is_first, usage=self._usage
        )
        sequence.has_begun, sequence.has_ended = True, delta.finish is not None
        return [self._framed(chunks)]

    def _framed(self, chunks: Sequence[bytes]) -> bytes:
        return b"".join(self._framing.event(chunk) for chunk in chunks)

    def _last_words(self) -> bytes:
        """What comes after the ends of all choices."""
        last = self._plan.shape.last_chunk(self._usage)
        return b"" if last is None else self._framed([last])

    def _broken_off(self) -> bytes:
        """An end for each choice that has had none, after something went wrong here."""
        parts: list[bytes] = []
        failed = Delta(index=0, finish=FinishReason.ERROR)
        try:
            for sequence in self._sequences.values():
                if not sequence.has_ended:
                    sequence.recorder.finish(FinishReason.ERROR)
                    parts += self._chunks(sequence, failed)
            parts.append(self._last_words())
        except Exception:
            # What writes chunks is what broke: the error object alone must do.
            log.exception("The chunks that end a stream cannot be written")
        return b"".join(parts)

    def _failure(self, error: Exception) -> bytes:
        """Why the stream broke."""
        try:
            return self._framed(self._plan.shape.failure(error, self._usage))
        except Exception:
            log.exception("The failure of a stream cannot be written in its API's words")
            return event(problem_chunk(error))

    # -- both -------------------------------------------------------------------------------------

    def _usage(self) -> Usage:
        return usage_of([responder.counts for responder in self._responders])

    def _take(self, sequence: _Sequence, item: TokenEvent) -> Outcome:
        if item.token_ids:
            self._ticket.start()
            if sequence.sitting is not None:
                sequence.sitting.num_made += len(item.token_ids)
        telemetry = self._plan.shape.telemetry
        if telemetry is not None:
            sequence.reports = telemetry.observe(sequence.choice, item)
        sequence.recorder.observe(item)
        outcome = sequence.responder.push(item)
        if outcome.cancel:
            self._events.stop_sequence(item.request_id, item.index)
        if outcome.delta is not None and outcome.delta.finish is not None:
            sequence.recorder.finish(outcome.delta.finish)
            sequence.stand_up()
        return outcome

    def _raise_early(self, sequence: _Sequence, delta: Delta | None) -> None:
        """An end before anything was said is a status, not an empty answer."""
        if delta is None:
            return
        error = self._error_of(delta)
        if error is not None:
            raise error
        if sequence.recorder.num_tokens:
            return
        if delta.finish is FinishReason.SHUTDOWN:
            raise UnavailableError("The server is shutting down; send the request elsewhere.")
        if delta.finish is FinishReason.TIMEOUT:
            raise DeadlineExceededError("The request's time ran out before its first token.")

    def _headers(self) -> dict[str, str]:
        if not self._plan.is_peer or len(self._plan.requests) != 1:
            return {}
        # With it, another replica can continue this answer token for token.
        return {"x-headrace-seed": str(self._plan.requests[0].params.seed)}

    def _error_of(self, delta: Delta) -> HeadraceError | None:
        if delta.finish is FinishReason.ERROR:
            error = error_named(delta.error_kind, delta.error or "The engine failed.")
            if isinstance(error, OverloadedError):  # it waited too long; the engine knows no pace
                error.retry_after = self._replica.admission.retry_after()
            return error
        if delta.finish is FinishReason.CANCELLED:
            return RequestCancelledError("The request was cancelled.")
        return None
