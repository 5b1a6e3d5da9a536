"""Where spans go, and of how many requests."""

from typing import Annotated

from msgspec import Meta, Struct


class TracingConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """OpenTelemetry traces, which need headrace[otel]."""

    otlp_endpoint: (
        Annotated[
            str,
            Meta(
                pattern="^https?://.+",
                extra={"expected": "a URL such as http://127.0.0.1:4318"},
            ),
        ]
        | None
    ) = None
    """Base URL of a receiver of OTLP over HTTP, such as http://127.0.0.1:4318; default OTEL_EXPORTER_OTLP_ENDPOINT of the
    environment, and without that nothing is traced. OTEL_EXPORTER_OTLP_HEADERS is sent too."""
    trace_ratio: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """Share of requests that are traced, of those that come without a trace of their own; the others do as their trace says."""
    max_queued_spans: Annotated[int, Meta(ge=1)] = 8192
    """Spans that wait for the receiver; more are dropped and counted."""
