"""Spans of a gateway: what it decided, whom it asked, and what a request came to. Names and numbers, no text."""

from headrace.fleet.gateway.call import Call
from headrace.fleet.gateway.endpoints import Kind
from headrace.fleet.gateway.request_meter import Finished
from headrace.fleet.gateway.router import Choice
from headrace.observe.tracing.tracer import Trace, new_span_id
from headrace.observe.tracing.values import SpanKind

#: Operations of OpenTelemetry's conventions for generative AI; all others have a name of their own here.
_OPERATIONS = {Kind.CHAT: "chat", Kind.COMPLETION: "text_completion", Kind.VECTORS: "embeddings"}


def operation_of(call: Call) -> str:
    """What is asked for."""
    return _OPERATIONS.get(call.endpoint.kind, str(call.endpoint.path.rpartition("/")[2]))


def tell_choice(trace: Trace, choice: Choice, started: float, now: float) -> None:
    """A replica was chosen."""
    decision = choice.decision
    trace.add(
        "route", started, now,
        {
            "headrace.replica": decision.replica_id,
            "headrace.routing.policy": decision.policy,
            "headrace.routing.reason": decision.reason,
            "headrace.routing.cached_tokens": decision.cached_tokens,
        },
    )  # fmt: skip


class Attempt:
    """One try at one replica: a span whose id the replica is sent, so that its own spans hang below it."""

    def __init__(self, trace: Trace, started: float) -> None:
        self._trace = trace
        self._span_id = new_span_id()
        self._started = started

    @property
    def traceparent(self) -> str:
        """For the replica."""
        return self._trace.context(self._span_id).traceparent

    def end(self, call: Call, choice: Choice, outcome: str, ttft: float | None, now: float) -> None:
        """The try is over."""
        address = choice.replica.pool.address
        self._trace.add(
            f"{operation_of(call)} {call.model}",
            self._started,
            now,
            {
                "gen_ai.operation.name": operation_of(call),
                "gen_ai.provider.name": str(choice.replica.spec.dialect),
                "gen_ai.request.model": call.model,
                "gen_ai.response.time_to_first_chunk": ttft,
                "server.address": address.host,
                "server.port": address.port,
                "headrace.replica": choice.replica.id,
                "headrace.outcome": outcome,
            },
            kind=SpanKind.CLIENT,
            span_id=self._span_id,
            error="" if outcome in ("ok", "refused", "cancelled", "superseded") else outcome,
        )


def begin_attempt(call: Call, started: float) -> Attempt | None:
    """None where the request is not traced."""
    return None if call.trace is None else Attempt(call.trace, started)


def tell_end(trace: Trace, call: Call, finished: Finished) -> None:
    """What the request came to."""
    row, operation = finished.row, operation_of(call)
    trace.describe(
        f"{operation} {row.model}",
        {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "headrace",
            "gen_ai.request.model": call.model or row.model,
            "gen_ai.response.model": row.model,
            "gen_ai.request.stream": call.is_stream,
            "gen_ai.request.max_tokens": call.bound or None,
            "gen_ai.usage.input_tokens": row.prompt_tokens,
            "gen_ai.usage.output_tokens": row.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": row.cached_tokens,
            "gen_ai.response.time_to_first_chunk": row.ttft if call.is_stream else None,
            "headrace.tenant": row.tenant,
            "headrace.priority": finished.priority,
            "headrace.replica": row.replica or None,
            "headrace.result": str(finished.result),
            "headrace.cache.saved_tokens": finished.saved_tokens or None,
        },
    )
    if finished.result == "broken":
        trace.failure = "broken"
