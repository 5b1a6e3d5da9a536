"""One try: one request at one replica, from its lease to the end of its answer."""

import asyncio
from collections.abc import Callable
from typing import NoReturn

from headrace.config.fleet.gateway import GatewayConfig
from headrace.core.clock import Clock
from headrace.core.errors import BadRequestError
from headrace.fleet.backends import values as wire
from headrace.fleet.gateway.answer import Answer
from headrace.fleet.gateway.call import Call
from headrace.fleet.gateway.inside import ToldError
from headrace.fleet.gateway.progress import Progress
from headrace.fleet.gateway.pulse import Pulse
from headrace.fleet.gateway.relay import Relay
from headrace.fleet.gateway.router import Choice
from headrace.fleet.gateway.spans import Attempt
from headrace.fleet.load import Lease
from headrace.fleet.replica import Replica
from headrace.fleet.sse import StreamError
from headrace.fleet.upstream.connection import Response
from headrace.fleet.upstream.failure import FailureKind, UpstreamError

#: Headers of clients that replicas are sent too.
_PASSED_ON = ("accept", "traceparent", "tracestate", "anthropic-version", "anthropic-beta")
#: Errors that say something of the replica, and nothing of the request.
_ITS_OWN = (402, 403, 404, 405, 407)
_INSIDE = "an error inside of an answer"
_MAX_SEED_DIGITS = 20
#: Seconds per token that an answer in one piece may take: it shows nothing until it is complete.
_SLOWEST_TOKEN = 0.25


class Exchange:
    """Sends a request to a replica and passes its answer on."""

    def __init__(
        self,
        call: Call,
        choice: Choice,
        config: GatewayConfig,
        clock: Clock,
        pulse: Pulse,
        attempt: Attempt | None = None,
    ) -> None:
        """`attempt` is its span, where it is traced: the replica's own hang below it."""
        self._call = call
        self._pulse = pulse
        self._replica = choice.replica
        self._cached_tokens = choice.decision.cached_tokens
        self._route = route_of(choice)
        self._config = config
        self._clock = clock
        self._attempt = attempt
        self.ttft: float | None = None
        """Seconds to the first token of a stream, once there is one."""

    async def run(
        self,
        sent: wire.Incoming,
        answer: Answer,
        progress: Progress,
        *,
        drops_usage: bool,
        on_lease: Callable[[], None],
    ) -> None:
        """Send `sent`, and answer with what comes; `on_lease` is called once it counts at the replica.

        Raises UpstreamError, or RefusedError for a request that is wrong.

        """
        backend = self._replica.backend
        outgoing = _worded(backend, sent)
        ahead = self._replica.load.prefill_tokens
        missing = max(0, self._call.prompt_tokens - self._cached_tokens)
        with self._replica.lease(
            prefill_tokens=missing,
            decode_tokens=self._call.output_within(self._replica.max_context),
        ) as lease:
            on_lease()
            started = self._clock.monotonic()
            response = await self._replica.pool.request(
                outgoing.method,
                outgoing.path,
                self._headers(outgoing),
                outgoing.body,
                first_byte=self._first_byte(sent),
            )
            try:
                if response.status >= 400:
                    await self._refused(response, answer)
                if response.status != 200:
                    raise UpstreamError(FailureKind.GARBAGE, f"status {response.status}")
                headers = _texts(response)
                reader = backend.reader(sent, headers)
                seed = headers.get("x-headrace-seed", "")
                if seed.isdecimal() and len(seed) <= _MAX_SEED_DIGITS:
                    progress.seed = int(seed)
                kind = headers.get("content-type", "") if reader is None else reader.content_type
                if not (kind.startswith("text/event-stream") if sent.is_stream else "json" in kind):
                    raise UpstreamError(FailureKind.GARBAGE, f"an answer of the type '{kind[:99]}'")
                if not sent.is_stream:
                    await self._whole(response, reader, answer, progress)
                    return
                relay = Relay(
                    progress,
                    ends=self._call.endpoint.ends,
                    drops_usage=drops_usage,
                    is_continuation=answer.has_begun,
                )
                watch = _Watch(self._replica, lease, self._clock, started, (ahead, missing))
                watch.count(self._pulse, None if answer.has_begun else self._call.arrival)
                await asyncio.create_task(self._stream(response, reader, relay, watch, answer))
            except StreamError as error:
                raise UpstreamError(FailureKind.GARBAGE, str(error)) from None
            finally:
                self._replica.pool.release(response)

    def _first_byte(self, sent: wire.Incoming) -> float:
        """Seconds until something of the answer's body must have come."""
        patience = self._config.timeouts.first_token
        return patience if sent.is_stream else patience + _SLOWEST_TOKEN * self._call.output_tokens

    def _headers(self, outgoing: wire.Outgoing) -> dict[str, str]:
        call = self._call
        headers = {"x-request-id": call.request_id, **outgoing.headers}
        for name in _PASSED_ON:
            if name in call.headers and name not in headers:
                headers[name] = call.headers[name]
        if self._attempt is not None:
            headers["traceparent"] = self._attempt.traceparent
        return headers

    async def _refused(self, response: Response, answer: Answer) -> None:
        """An error: the client's, which it gets, or one that another replica may not make."""
        body = await response.read_all(self._config.max_response_bytes)
        refusal = self._replica.backend.refusal(response.status, _texts(response), body)
        self._raise(refusal, f"status {response.status}", answer)

    def _raise(self, refusal: wire.Refusal, detail: str, answer: Answer) -> NoReturn:
        """What the replica says, in place of an answer or within one."""
        if refusal.is_overload:
            raise UpstreamError(FailureKind.OVERLOADED, detail, retry_after=refusal.retry_after)
        if refusal.is_of_model:
            raise UpstreamError(FailureKind.MODEL, detail)
        # Our key is wrong there, whatever the client sends: it must not look idle, and so draw all requests.
        if refusal.is_retryable or refusal.status == 401:
            told = None if detail is _INSIDE else refusal.status
            raise UpstreamError(FailureKind.STATUS, detail, http_status=told)
        # What it goes on from is kept by this replica or by none.
        is_lost = refusal.status == 404 and self._call.previous_response
        is_own = refusal.status in _ITS_OWN and not is_lost
        if answer.has_begun or is_own:
            raise UpstreamError(FailureKind.REFUSED, detail)
        raise RefusedError(refusal)

    async def _whole(
        self,
        response: Response,
        reader: wire.AnswerReader | None,
        answer: Answer,
        progress: Progress,
    ) -> None:
        body = await response.read_all(self._config.max_response_bytes)
        headers = response.headers
        if reader is not None:
            body = reader.feed(body) + reader.finish()
            if reader.refusal is not None:
                self._raise(reader.refusal, _INSIDE, answer)
            if not reader.is_complete:
                raise UpstreamError(FailureKind.GARBAGE, "an answer that is not whole")
            headers = {b"content-type": reader.content_type.encode()}
        if not progress.note_whole(body):
            raise UpstreamError(FailureKind.GARBAGE, "an answer that is no JSON")
        # Claimed last: until here another replica may still answer instead.
        answer.claim(progress, self._route)
        self._pulse.note_whole(progress.usage.output_tokens if progress.usage is not None else 0)
        await answer.whole(response.status, headers, body, progress.usage)

    async def _stream(
        self,
        response: Response,
        reader: wire.AnswerReader | None,
        relay: Relay,
        watch: "_Watch",
        answer: Answer,
    ) -> None:
        """In a task of its own: a token wakes the few frames from here on, and not all that lead here."""
        while data := await response.read():
            if reader is not None:
                data = reader.feed(data)
            events = relay.feed(data)
            self.ttft = watch.note(relay)
            if events:
                answer.claim(relay.progress, self._route)
                await answer.write(events)
            self._check(relay, answer)
            if reader is not None and reader.refusal is not None:
                self._raise(reader.refusal, _INSIDE, answer)
            if reader is not None and reader.is_cut:
                break  # the connection is closed with the rest in it, which ends it there
        if reader is not None and (events := relay.feed(reader.finish())):
            answer.claim(relay.progress, self._route)
            await answer.write(events)
        self._check(relay, answer)
        relay.check_end()
        watch.end(relay)
        await answer.end(relay.progress.usage)

    def _check(self, relay: Relay, answer: Answer) -> None:
        """Raises what an event has told of a failure."""
        try:
            relay.check()
        except ToldError as told:
            self._raise(self._replica.backend.refusal(told.status, {}, told.body), _INSIDE, answer)


def route_of(choice: Choice) -> str:
    """A decision as a header tells it."""
    decision = choice.decision
    return f"{decision.replica_id}; {decision.policy}; {decision.reason}"


class RefusedError(Exception):
    """The replica says that the request is wrong: the client is told so in its words."""

    def __init__(self, refusal: wire.Refusal) -> None:
        super().__init__(f"status {refusal.status}")
        self.refusal = refusal


class UnfitError(UpstreamError):
    """The replica's dialect has no words for the request; another one's may have. Nothing was sent."""

    def __init__(self, reason: BadRequestError) -> None:
        super().__init__(FailureKind.REFUSED, str(reason))
        self.reason = reason


class _Watch:
    """Tells lease and latency how a stream comes on."""

    def __init__(
        self,
        replica: Replica,
        lease: Lease,
        clock: Clock,
        started: float,
        work: tuple[int, int],
    ) -> None:
        """`work`: uncached prompt tokens that were ahead of it, and its own."""
        self._replica = replica
        self._lease = lease
        self._clock = clock
        self._started = started
        self._work = work
        self._first = 0.0
        self._last = 0.0
        self._arrival: float | None = None
        self._pulse: Pulse | None = None

    def count(self, pulse: Pulse, arrival: float | None) -> None:
        """In `pulse` too. `arrival` is that of the request that the stream begins to answer; None: it goes on with it."""
        self._pulse = pulse
        self._arrival = arrival

    def note(self, relay: Relay) -> float | None:
        """A piece of the stream was read; the seconds that its first token took, if there has been one."""
        new = relay.take_new()
        if not new:
            return self._first - self._started if self._first else None
        now = self._clock.monotonic()
        if relay.progress.pace is not None:
            relay.progress.pace.note(now, new)
        if not self._first:
            self._first = now
            self._lease.note_first_token()
            ahead, own = self._work
            latency = self._replica.latency
            latency.note_first_token(self._first - self._started, ahead + own)
            latency.note_prefill(self._started, self._first, own)
        if self._pulse is not None:
            self._note_pulse(self._pulse, now, new)
        self._last = now
        self._lease.note_tokens(new)
        return self._first - self._started

    def _note_pulse(self, pulse: Pulse, now: float, num_tokens: int) -> None:
        if self._last:
            pulse.note_more(now - self._last, num_tokens)
        else:
            pulse.note_first(None if self._arrival is None else now - self._arrival, num_tokens)

    def end(self, relay: Relay) -> None:
        """The stream has ended as it should."""
        if relay.num_tokens > 1:
            self._replica.latency.note_output(
                self._clock.monotonic() - self._first, relay.num_tokens - 1
            )


def _worded(backend: wire.Backend, sent: wire.Incoming) -> wire.Outgoing:
    """Raises UnfitError."""
    try:
        return backend.outgoing(sent)
    except BadRequestError as error:
        raise UnfitError(error) from None


def _texts(response: Response) -> dict[str, str]:
    return {
        name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers.items()
    }
