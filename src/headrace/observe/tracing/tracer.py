"""Which requests are traced, and what becomes of their spans."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from headrace.core.clock import Clock
from headrace.observe.metrics import Metrics
from headrace.observe.tracing.values import (
    Attribute,
    Span,
    SpanKind,
    TraceContext,
    read_traceparent,
)

#: Spans of one request; more are left out, so that one request cannot fill the queue.
MAX_SPANS: Final = 256
_IDS: Final = 1 << 56


class Exporter(Protocol):
    """Where spans go."""

    def put(self, spans: Sequence[Span]) -> None:
        """Take them, or drop them; never waits."""
        ...

    def write_counts(self, metrics: Metrics) -> None:
        """Bring a page of metrics up to date."""
        ...

    def close(self) -> None:
        """Send what waits, for a moment."""
        ...


class Tracer:
    """One process's. `begin` costs nothing but a look at a header where a request is not traced."""

    def __init__(self, exporter: Exporter, ratio: float, clock: Clock) -> None:
        self.exporter = exporter
        self._below = int(ratio * _IDS)
        self._clock = clock

    def begin(self, traceparent: str | None, arrival: float) -> "Trace | None":
        """A request that came at `arrival` (`Clock.monotonic`); None: it is not traced."""
        parent = read_traceparent(traceparent) if traceparent else None
        if parent is not None:
            return Trace(self, parent, arrival, self._clock) if parent.is_sampled else None
        trace_id = secrets.token_hex(16)
        if int(trace_id[18:], 16) >= self._below:
            return None
        return Trace(self, TraceContext(trace_id, "", True), arrival, self._clock)


class Trace:
    """One request's part of a trace in this process: a span for all of it, and those within. Times are monotonic."""

    def __init__(self, tracer: Tracer, parent: TraceContext, arrival: float, clock: Clock) -> None:
        self._tracer = tracer
        self._parent = parent
        self._root = new_span_id()
        self._spans: list[Span] = []
        self._num_spans = 0
        self._is_over = False
        self._shift = clock.wall() - clock.monotonic()
        self.arrival = arrival
        self.name = ""
        """Of the span for all of it; empty: whoever ends it names it."""
        self.attributes: dict[str, Attribute] = {}
        self.failure = ""
        """Why it failed though its status says nothing of it, in a word."""
        self.marks: dict[str, float] = {}
        """When it passed a gate, for whoever makes spans of that."""

    def describe(self, name: str, attributes: Mapping[str, Attribute | None]) -> None:
        """What the request is; None is left out."""
        self.name = name
        self.attributes |= {key: value for key, value in attributes.items() if value is not None}

    def add(
        self,
        name: str,
        start: float,
        end: float,
        attributes: Mapping[str, Attribute | None] | None = None,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        span_id: str = "",
        error: str = "",
    ) -> None:
        """Something that happened within it; `span_id` where that was told before."""
        self._num_spans += 1
        if self._num_spans > MAX_SPANS:
            return
        span = Span(
            name=name,
            trace_id=self._parent.trace_id,
            span_id=span_id or new_span_id(),
            parent_id=self._root,
            start=start + self._shift,
            end=max(start, end) + self._shift,
            kind=kind,
            attributes={
                key: value for key, value in (attributes or {}).items() if value is not None
            },
            error=error,
        )
        if self._is_over:
            self._tracer.exporter.put([span])
        else:
            self._spans.append(span)

    def context(self, span_id: str) -> TraceContext:
        """What is sent with a call that is a span of its own."""
        return TraceContext(self._parent.trace_id, span_id, True)

    def end(self, end: float, *, error: str = "") -> None:
        """It is over, once. What is added later goes out by itself."""
        if self._is_over:
            return
        root = Span(
            name=self.name,
            trace_id=self._parent.trace_id,
            span_id=self._root,
            parent_id=self._parent.span_id,
            start=self.arrival + self._shift,
            end=end + self._shift,
            kind=SpanKind.SERVER,
            attributes=self.attributes,
            error=error,
        )
        self._spans.append(root)
        self._is_over = True
        self._tracer.exporter.put(self._spans)
        self._spans = []


def new_span_id() -> str:
    """16 hexadecimal digits, not all of them 0."""
    return secrets.token_hex(8).replace("0" * 16, "0" * 15 + "1")
