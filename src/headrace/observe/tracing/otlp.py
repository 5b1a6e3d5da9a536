"""Spans on their way out, over OTLP/HTTP, by OpenTelemetry's own exporter in a thread of its own.

Its packages take long to import and are imported in that thread; where nothing is traced they are never loaded.
"""

import logging
import queue
import threading
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

from headrace import __version__
from headrace.config import env
from headrace.config.tracing import TracingConfig
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.observe.catalogue import TRACE_SPANS
from headrace.observe.metrics import Metrics
from headrace.observe.tracing.reach import Reach
from headrace.observe.tracing.tracer import Tracer
from headrace.observe.tracing.values import Span, SpanKind

#: Spans in one message, and seconds that the first of them waits for more.
_BATCH: Final = 512
_PAUSE: Final = 0.5
#: Seconds for what waits when the process ends.
_LAST_SECONDS: Final = 3.0
_PACKAGE: Final = "opentelemetry.exporter.otlp.proto.http"

log = logging.getLogger("headrace.traces")


def open_tracer(config: TracingConfig, service: str, clock: Clock) -> Tracer | None:
    """None where there is no endpoint. Raises ConfigError where there is one and the packages are missing."""
    url = _url(config)
    if url is None:
        return None
    if not _is_installed():
        raise ConfigError("Traces need headrace[otel]: pip install 'headrace[otel]'.")
    name = env.get("OTEL_SERVICE_NAME") or service
    exporter = OtlpExporter(url, name, max_queued=config.max_queued_spans)
    exporter.start()
    return Tracer(exporter, config.trace_ratio, clock)


class OtlpExporter:
    """A bounded queue and the thread that empties it."""

    def __init__(self, url: str, service: str, *, max_queued: int) -> None:
        self._url = url
        self._service = service
        self._queue: queue.Queue[Span | None] = queue.Queue(max_queued)
        self._reach = Reach(url)
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._num_exported = self._num_failed = self._num_dropped = 0

    def start(self) -> None:
        """Send from now on."""
        self._thread.start()

    def put(self, spans: Sequence[Span]) -> None:
        """Part of Exporter."""
        for span in spans:
            try:
                self._queue.put_nowait(span)
            except queue.Full:
                self._num_dropped += 1

    def close(self) -> None:
        """Part of Exporter."""
        try:
            self._queue.put(None, timeout=_LAST_SECONDS)
        except queue.Full:
            return
        self._thread.join(_LAST_SECONDS)

    def write_counts(self, metrics: Metrics) -> None:
        """Bring the page up to date; before it is read, on the loop's thread."""
        for outcome, count in (
            ("exported", self._num_exported),
            ("failed", self._num_failed),
            ("dropped", self._num_dropped),
        ):
            metrics.set(TRACE_SPANS, (outcome,), count)

    def _run(self) -> None:
        try:
            words = _words(self._service)
            sender = _sender(self._url)
        except Exception:
            log.exception("Traces cannot be sent")
            return
        self._reach.listen()
        try:
            is_open = True
            while is_open:
                batch, is_open = self._take()
                if batch:
                    self._send(sender, words, batch)
            sender.shutdown()
        finally:
            self._reach.close()

    def _take(self) -> tuple[list[Span], bool]:
        """The next batch; False when it is the last."""
        first = self._queue.get()
        if first is None:
            return [], False
        batch = [first]
        while len(batch) < _BATCH:
            try:
                span = self._queue.get(timeout=_PAUSE)
            except queue.Empty:
                break
            if span is None:
                return batch, False
            batch.append(span)
        return batch, True

    def _send(self, sender: Any, words: "_Words", batch: list[Span]) -> None:
        reason = ""
        try:
            result = sender.export([readable(span, words) for span in batch])
            is_good = result.name == "SUCCESS"
        except Exception as error:  # noqa: BLE001 - told
            is_good, reason = False, f"{type(error).__name__}: {error}"
        if is_good:
            self._num_exported += len(batch)
            self._reach.arrived()
        else:
            self._num_failed += len(batch)
            self._reach.lost(len(batch), reason)


class _Words(NamedTuple):
    """OpenTelemetry's classes, and what all spans share."""

    trace: Any
    sdk: Any
    resource: Any
    scope: Any


def _url(config: TracingConfig) -> str | None:
    """Where spans are posted: the setting, else the environment, as OpenTelemetry's specification has it."""
    own = env.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    if config.otlp_endpoint is None and own is not None:
        return own
    base = config.otlp_endpoint or env.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    return None if base is None else f"{base.rstrip('/')}/v1/traces"


def _is_installed() -> bool:
    try:
        return find_spec(_PACKAGE) is not None and find_spec("opentelemetry.sdk") is not None
    except ModuleNotFoundError:
        return False


def _words(service: str) -> _Words:
    from opentelemetry import trace
    from opentelemetry.sdk import trace as sdk
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    resource = Resource.create({"service.name": service, "service.version": __version__})
    return _Words(trace, sdk, resource, InstrumentationScope("headrace", __version__))


def _sender(url: str) -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=url)


def readable(span: Span, words: _Words) -> Any:
    """In OpenTelemetry's shape."""
    trace = words.trace

    def context(span_id: str, *, is_remote: bool) -> Any:
        flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
        return trace.SpanContext(int(span.trace_id, 16), int(span_id, 16), is_remote, flags)

    kinds = {
        SpanKind.INTERNAL: trace.SpanKind.INTERNAL,
        SpanKind.SERVER: trace.SpanKind.SERVER,
        SpanKind.CLIENT: trace.SpanKind.CLIENT,
    }
    attributes = {**span.attributes, **({"error.type": span.error} if span.error else {})}
    status = trace.Status(trace.StatusCode.ERROR) if span.error else trace.Status()
    is_server = span.kind is SpanKind.SERVER
    return words.sdk.ReadableSpan(
        name=span.name,
        context=context(span.span_id, is_remote=False),
        parent=context(span.parent_id, is_remote=is_server) if span.parent_id else None,
        resource=words.resource,
        attributes=attributes,
        kind=kinds[span.kind],
        instrumentation_scope=words.scope,
        status=status,
        start_time=int(span.start * 1e9),
        end_time=int(span.end * 1e9),
    )
