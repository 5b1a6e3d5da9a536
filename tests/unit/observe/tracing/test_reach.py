"""A dead endpoint of traces is one line in our own words, whatever the library says, and another when it is back."""

import logging
import types

import pytest

from headrace.observe.tracing import otlp
from headrace.observe.tracing.otlp import OtlpExporter
from headrace.observe.tracing.reach import LIBRARY, Reach
from headrace.observe.tracing.values import Span

SPAN = Span(name="s", trace_id="a" * 32, span_id="b" * 16, parent_id="", start=0.0, end=1.0)
REFUSED = (
    "Transient error HTTPConnectionPool(host='127.0.0.1', port=1): Max retries exceeded with url: /v1/traces "
    '(Caused by NewConnectionError("HTTPConnection: Failed to establish a new connection: [Errno 111] Connection refused")) '
    "encountered while exporting spans batch, retrying in 0.97s."
)


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


def lines(heard: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in heard.records]


def library_says(words: str) -> None:
    logging.getLogger(f"{LIBRARY}.otlp.proto.http.trace_exporter").warning(words)


def test_one_line_for_an_outage_and_one_for_its_end(heard: pytest.LogCaptureFixture) -> None:
    reach = Reach("http://user:secret@a:4318/v1/traces?key=k")
    reach.listen()
    try:
        reach.arrived()
        for _ in range(50):
            library_says(REFUSED)
            library_says("Failed to export spans batch due to timeout, max retries or shutdown.")
            reach.lost(3)
        reach.arrived()
        reach.arrived()
        library_says("Failed to export spans batch code: 400, reason: Bad Request")
        reach.lost(2)
    finally:
        reach.close()
    assert lines(heard) == [
        "Traces do not reach http://a:4318/v1/traces: Connection refused. "
        "Spans are lost until they do",
        "Traces reach http://a:4318/v1/traces again; 150 spans were lost",
        "Traces do not reach http://a:4318/v1/traces: "
        "Failed to export spans batch code: 400, reason: Bad Request. "
        "Spans are lost until they do",
    ]


@pytest.mark.parametrize("is_raised", [True, False])
def test_a_reason_has_neither_a_query_nor_a_password(
    heard: pytest.LogCaptureFixture, is_raised: bool
) -> None:
    words = (
        "HTTPSConnectionPool(host='a', port=443): Max retries exceeded with url: /v1/traces?key=secret "
        "(Caused by ConnectTimeoutError('Connection to a timed out, https://user:secret@a/v1'))"
    )
    reach = Reach("https://a/v1/traces?key=secret")
    reach.listen()
    try:
        if not is_raised:
            library_says(words)
        reach.lost(1, words if is_raised else "")
    finally:
        reach.close()
    assert "secret" not in lines(heard)[-1]
    assert "timed out, https://a/v1" in lines(heard)[-1]


def test_a_reason_is_bounded(heard: pytest.LogCaptureFixture) -> None:
    reach = Reach("http://a")
    reach.lost(1, "ValueError: " + "x" * 10_000)
    assert len(lines(heard)[0]) < 400


def test_the_library_may_speak_again_when_the_last_one_has_ended() -> None:
    library = logging.getLogger(LIBRARY)
    first, second = Reach("http://a"), Reach("http://b")
    first.listen()
    second.listen()
    first.close()
    assert not library.propagate
    second.close()
    assert library.propagate
    assert not any(isinstance(handler, Reach) for handler in library.handlers)


@pytest.mark.parametrize("is_raised", [True, False])
def test_an_exporter_tells_once(
    heard: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, is_raised: bool
) -> None:
    answers = iter([False, False, True])

    def export(spans: list[object]) -> object:
        is_good = next(answers)
        if not is_good:
            library_says(REFUSED)
        if not is_good and is_raised:
            raise OSError(REFUSED)
        return types.SimpleNamespace(name="SUCCESS" if is_good else "FAILURE")

    sender = types.SimpleNamespace(export=export, shutdown=lambda: None)
    monkeypatch.setattr(otlp, "_sender", lambda url: sender)
    monkeypatch.setattr(otlp, "_words", lambda service: None)
    monkeypatch.setattr(otlp, "readable", lambda span, words: span)
    monkeypatch.setattr(otlp, "_BATCH", 1)
    exporter = OtlpExporter("http://a/v1/traces", "s", max_queued=10)
    exporter.put([SPAN] * 3)
    exporter._queue.put(None)
    exporter._run()
    first, second = lines(heard)
    assert first.startswith("Traces do not reach http://a/v1/traces: ")
    assert "Connection refused" in first
    assert second == "Traces reach http://a/v1/traces again; 2 spans were lost"
    assert (exporter._num_exported, exporter._num_failed) == (1, 2)


def test_the_real_library_says_nothing_past_it(
    heard: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "0.01")
    exporter = OtlpExporter("http://127.0.0.1:1/v1/traces", "s", max_queued=10)
    exporter.put([SPAN])
    exporter._queue.put(None)
    exporter._run()
    (line,) = lines(heard)
    assert line.startswith("Traces do not reach http://127.0.0.1:1/v1/traces: ")
