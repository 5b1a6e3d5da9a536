import asyncio
import json
from typing import Any

import pytest
from tests.support.fake_clock import FakeClock

from headrace.bench.client import Exchange, Outcome, parse_url
from headrace.core.errors import ConfigError


class Wire(asyncio.Transport):
    """Keeps what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def abort(self) -> None:
        self.closed = True


def event(value: Any) -> bytes:
    text = value if isinstance(value, str) else json.dumps(value)
    return f"data: {text}\n\n".encode()


TOKEN = event({"choices": [{"index": 0, "text": " x"}]})
USAGE = event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 9}})
DONE = event("[DONE]")
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


class Talk:
    """An exchange, and a clock that moves one second with every piece it is fed."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.outcome = Outcome(due=self.clock.monotonic(), chunks=[])
        self.exchange = Exchange(b"ASK", self.outcome, self.clock)
        self.wire = Wire()
        self.exchange.connection_made(self.wire)

    def feed(self, *pieces: bytes) -> Outcome:
        for piece in pieces:
            self.clock.advance(1.0)
            self.exchange.data_received(piece)
        return self.outcome

    @property
    def seconds(self) -> list[float]:
        return [time - self.outcome.due for time in self.outcome.chunks]


async def test_chunks_are_timed_as_they_come_and_counted_by_the_server() -> None:
    talk = Talk()
    outcome = talk.feed(HEAD, chunked(TOKEN), chunked(TOKEN + TOKEN), chunked(USAGE), chunked(DONE))
    assert talk.wire.written == b"ASK"
    assert talk.seconds == [2.0, 3.0, 3.0]
    assert (outcome.prompt_tokens, outcome.output_tokens, outcome.error) == (5, 9, None)
    assert outcome.ended - outcome.due == 5.0
    assert talk.exchange.done.done()
    assert talk.wire.closed


async def test_a_chunk_split_anywhere_counts_when_it_is_whole() -> None:
    whole = HEAD + chunked(TOKEN) + chunked(USAGE + DONE)
    for cut in range(1, len(whole)):
        outcome = Talk().feed(whole[:cut], whole[cut:])
        assert (len(outcome.chunks), outcome.output_tokens, outcome.error) == (1, 9, None)


async def test_comments_carriage_returns_and_null_choices_are_read() -> None:
    body = (
        b": ping\r\n\r\ndata: " + TOKEN[6:].strip() + b"\r\n\r\n" + event({"choices": None}) + DONE
    )
    outcome = Talk().feed(HEAD + chunked(body))
    assert (len(outcome.chunks), outcome.error) == (1, None)


@pytest.mark.parametrize(
    ("pieces", "kind", "detail"),
    [
        ([b"HTTP/1.1 429 X\r\nContent-Length: 30\r\n\r\n", b'{"error":{"message":"too full"}'[:30]],
         "http 429", '{"error":{"message":"too full"'),
        ([b"HTTP/1.1 400 X\r\nContent-Length: 31\r\n\r\n", b'{"error":{"message":"too bad"}}'],
         "http 400", "too bad"),
        ([b"SSH-2.0-OpenSSH\r\n"], "bad stream", "not HTTP"),
        ([HEAD, chunked(b"data: {nope\n\n")], "bad stream", "nope"),
        ([HEAD, chunked(TOKEN), chunked(event({"error": {"message": "died"}}))],
         "stream error", "died"),
        ([HEAD, chunked(DONE)], "empty stream", ""),
        ([HEAD, b"0\r\n\r\n"], "empty stream", ""),
    ],
)  # fmt: skip
async def test_failures_have_a_kind_and_a_detail(
    pieces: list[bytes], kind: str, detail: str
) -> None:
    outcome = Talk().feed(*pieces)
    assert outcome.error == kind
    assert detail in outcome.detail


async def test_a_lost_connection_is_a_failure_only_before_the_end() -> None:
    talk = Talk()
    talk.feed(HEAD, chunked(TOKEN))
    talk.exchange.connection_lost(None)
    assert talk.outcome.error == "disconnected"
    ended = Talk()
    ended.feed(HEAD, chunked(TOKEN), chunked(DONE))
    ended.exchange.connection_lost(ConnectionResetError())
    assert ended.outcome.error is None


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h:1", ("h", 1, False, "")),
        ("h:1", ("h", 1, False, "")),
        ("https://h/v1/", ("h", 443, True, "")),
        ("http://[::1]:9/base/v1", ("::1", 9, False, "/base")),
    ],
)
def test_urls(url: str, expected: tuple[str, int, bool, str]) -> None:
    target = parse_url(url)
    assert (target.host, target.port, target.is_tls, target.prefix) == expected


@pytest.mark.parametrize("url", ["ftp://h", "http://", "http://h:99999", "http://[::1"])
def test_what_is_not_a_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is not a"):
        parse_url(url)


def test_a_request_names_host_length_and_key() -> None:
    text = parse_url("http://[::1]:9/x", "k").request("POST", "/v1/completions", b"{}").decode()
    assert text.startswith("POST /x/v1/completions HTTP/1.1\r\nHost: [::1]:9\r\n")
    assert "Authorization: Bearer k\r\n" in text
    assert text.endswith("Content-Length: 2\r\nAccept: */*\r\nConnection: close\r\n\r\n{}")
