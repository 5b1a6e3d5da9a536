"""Contexts read and written, requests sampled, spans as many as there may be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fake_clock import FakeClock

from headrace.config.tracing import TracingConfig
from headrace.observe.metrics import Metrics
from headrace.observe.tracing.otlp import OtlpExporter, open_tracer
from headrace.observe.tracing.tracer import MAX_SPANS, Tracer
from headrace.observe.tracing.values import Span, SpanKind, TraceContext, read_traceparent

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


class Kept:
    def __init__(self):
        self.spans = []

    def put(self, spans):
        self.spans += spans

    def write_counts(self, metrics):
        pass

    def close(self):
        pass


def tracer(ratio=1.0):
    kept = Kept()
    return Tracer(kept, ratio, FakeClock()), kept


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        PARENT.upper(),
        PARENT + "-more",
        PARENT.replace("00-", "ff-", 1),
        f"00-{'0' * 32}-{'b' * 16}-01",
        f"00-{'a' * 32}-{'0' * 16}-01",
        f"00-{'g' * 32}-{'b' * 16}-01",
        f"00-{'a' * 31}-{'b' * 16}-01",
    ],
)
def test_what_is_no_context_is_none(text):
    assert read_traceparent(text) is None


def test_a_later_version_is_read_as_far_as_it_is_known():
    found = read_traceparent(f"01-{'a' * 32}-{'b' * 16}-03-what-comes")
    assert found == TraceContext("a" * 32, "b" * 16, True)
    assert found.traceparent == PARENT


@given(st.text())
def test_no_header_breaks_it(text):
    made, _ = tracer()
    made.begin(text, 0.0)


def test_the_parent_decides_whatever_the_ratio_is():
    made, _ = tracer(0.0)
    assert made.begin(PARENT, 0.0) is not None
    made, _ = tracer(1.0)
    assert made.begin(PARENT[:-1] + "0", 0.0) is None


@pytest.mark.parametrize(
    ("ratio", "least", "most"), [(0.0, 0, 0), (1.0, 400, 400), (0.5, 120, 280)]
)
def test_the_ratio_decides_for_all_others(ratio, least, most):
    made, _ = tracer(ratio)
    assert least <= sum(made.begin(None, 0.0) is not None for _ in range(400)) <= most


def test_spans_hang_below_their_request_and_come_when_it_ends():
    made, kept = tracer()
    trace = made.begin(PARENT, 1000.0)
    trace.add("inner", 1001.0, 1002.0, {"n": 1, "left_out": None})
    assert kept.spans == []
    trace.describe("chat m", {"model": "m"})
    trace.end(1003.0)
    trace.end(1004.0)
    inner, root = kept.spans
    assert (root.name, root.kind, root.parent_id) == ("chat m", SpanKind.SERVER, "b" * 16)
    assert inner.parent_id == root.span_id
    assert inner.attributes == {"n": 1}
    assert root.end - root.start == 3.0
    assert inner.start - root.start == 1.0
    trace.add("late", 1005.0, 1001.0)
    assert kept.spans[2].end == kept.spans[2].start


def test_one_request_cannot_fill_the_queue():
    made, kept = tracer()
    trace = made.begin(None, 0.0)
    for _ in range(5 * MAX_SPANS):
        trace.add("s", 0.0, 1.0)
    trace.end(1.0)
    assert len(kept.spans) == MAX_SPANS + 1


def test_a_full_queue_drops_and_counts():
    exporter = OtlpExporter("http://127.0.0.1:1/v1/traces", "s", max_queued=3)  # not started
    span = Span(name="s", trace_id="a" * 32, span_id="b" * 16, parent_id="", start=0.0, end=1.0)
    exporter.put([span] * 10)
    metrics = Metrics()
    exporter.write_counts(metrics)
    from headrace.observe.catalogue import TRACE_SPANS

    assert metrics.value(TRACE_SPANS, ("dropped",)) == 7


def test_without_an_endpoint_nothing_is_traced_and_nothing_is_imported(monkeypatch):
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", raising=False)
    assert open_tracer(TracingConfig(), "s", FakeClock()) is None


@pytest.mark.parametrize(
    ("own", "variables", "url"),
    [
        ("http://a:1/", {}, "http://a:1/v1/traces"),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://b"}, "http://b/v1/traces"),
        (None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/x"}, "http://c/x"),
        ("http://a", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/x"}, "http://a/v1/traces"),
    ],
)
def test_where_spans_go(monkeypatch, own, variables, url):
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    started = []
    monkeypatch.setattr(OtlpExporter, "start", lambda self: started.append(self._url))
    open_tracer(TracingConfig(otlp_endpoint=own), "s", FakeClock())
    assert started == [url]
