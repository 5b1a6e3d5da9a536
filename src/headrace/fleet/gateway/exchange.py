"""One try: one request at one replica, from its lease to the end of its answer."""

from typing import Any

from headrace.config.fleet.gateway import GatewayConfig
from headrace.config.fleet.replicas import Dialect
from headrace.core.clock import Clock
from headrace.fleet.gateway.answer import Answer
from headrace.fleet.gateway.call import Call, patched
from headrace.fleet.gateway.relay import Progress, Relay
from headrace.fleet.load import Lease
from headrace.fleet.replica import Replica
from headrace.fleet.upstream.connection import Response
from headrace.fleet.upstream.failure import FailureKind, UpstreamError

#: Headers of clients that replicas are sent too.
_PASSED_ON = ("accept", "traceparent", "tracestate", "anthropic-version", "anthropic-beta")


class Exchange:
    """Sends a request to a replica and passes its answer on."""

    def __init__(self, call: Call, replica: Replica, config: GatewayConfig, clock: Clock) -> None:
        self._call = call
        self._replica = replica
        self._config = config
        self._clock = clock
        self._is_peer = replica.spec.peer_token is not None
        self._adds_usage = False
        self.seed: str | None = None
        """The resolved seed, of headrace replicas."""

    async def run(
        self, answer: Answer, progress: Progress, changes: dict[str, Any], cached_tokens: int
    ) -> None:
        """Answer with what the replica answers; `changes` are fields of the body. Raises UpstreamError.

        What the replica refuses as the client's fault (4xx) is passed on, unless the answer has begun.
        """
        ahead = self._replica.load.prefill_tokens
        missing = max(0, self._call.prompt_tokens - cached_tokens)
        with self._replica.lease(
            prefill_tokens=missing, decode_tokens=self._call.output_tokens
        ) as lease:
            sent = self._clock.monotonic()
            response = await self._replica.pool.request(
                "POST", self._call.endpoint.path, self._headers(), self._body(changes)
            )
            try:
                self._check(response, has_begun=answer.has_begun)
                seed = response.headers.get(b"x-headrace-seed")
                self.seed = seed.decode("latin-1") if seed is not None else None
                if response.headers.get(b"content-type", b"").startswith(b"text/event-stream"):
                    await self._stream(response, answer, progress, lease, sent, ahead + missing)
                else:
                    await self._whole(response, answer)
            finally:
                self._replica.pool.release(response)

    # -- the request ------------------------------------------------------------------------------

    def _headers(self) -> dict[str, str]:
        call, spec = self._call, self._replica.spec
        headers = {"content-type": "application/json", "x-request-id": call.request_id}
        headers |= {name: call.headers[name] for name in _PASSED_ON if name in call.headers}
        if spec.api_key is not None:
            headers["authorization"] = "Bearer " + spec.api_key
        if spec.peer_token is not None:
            headers["x-headrace-peer"] = str(spec.peer_token)
        return headers

    def _body(self, changes: dict[str, Any]) -> bytes:
        call = self._call
        if call.is_stream and call.endpoint.can_resume and not call.wants_usage:
            # What an answer cost is counted by the replica; the client does not see the event.
            self._adds_usage = True
            options = call.body.get("stream_options")
            options = options if isinstance(options, dict) else {}
            changes = {**changes, "stream_options": {**options, "include_usage": True}}
        return patched(call, changes)

    # -- the answer -------------------------------------------------------------------------------

    def _check(self, response: Response, *, has_begun: bool) -> None:
        """Raises UpstreamError for an answer that another replica may give better."""
        status = response.status
        if status in (429, 503):
            raise UpstreamError(
                FailureKind.OVERLOADED, f"status {status}", retry_after=_retry_after(response)
            )
        if status >= 500:
            raise UpstreamError(FailureKind.STATUS, f"status {status}")
        if status in (401, 403, 404, 405):
            raise UpstreamError(FailureKind.REFUSED, f"status {status}")
        if has_begun and status != 200:
            raise UpstreamError(FailureKind.REFUSED, f"status {status} to a continuation")

    async def _whole(self, response: Response, answer: Answer) -> None:
        body = await response.read_all(self._config.max_response_bytes)
        if answer.has_begun:
            raise UpstreamError(FailureKind.GARBAGE, "no stream where one was asked for")
        await answer.whole(response.status, response.headers, body)

    async def _stream(
        self,
        response: Response,
        answer: Answer,
        progress: Progress,
        lease: Lease,
        sent: float,
        work: int,
    ) -> None:
        relay = Relay(
            progress,
            end=self._call.endpoint.end,
            drops_usage=self._adds_usage,
            is_continuation=answer.has_begun,
        )
        first = 0.0
        while data := await response.read():
            before = progress.num_tokens
            events = relay.feed(data)
            lease.note_tokens(max(1, progress.num_tokens - before))
            if not first and relay.num_new:
                first = self._clock.monotonic()
                lease.note_first_token()
                self._replica.latency.note_first_token(first - sent, work)
            if events:
                await answer.write(events)
            relay.check()
        relay.check_end()
        if first and relay.num_new > 1:
            tokens = progress.num_tokens if self._is_peer else relay.num_new
            self._replica.latency.note_output(self._clock.monotonic() - first, tokens)
        await answer.end()


def is_peer(replica: Replica) -> bool:
    """It tells token ids, and goes on from them."""
    return replica.spec.dialect is Dialect.HEADRACE and replica.spec.peer_token is not None


def _retry_after(response: Response) -> float | None:
    text = response.headers.get(b"retry-after", b"")
    return float(text) if text.isdigit() else None
