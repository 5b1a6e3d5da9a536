import pytest

from headrace.fleet.sse import Event, EventParser, StreamError, parse

STREAM = (
    b'\xef\xbb\xbf: headrace {"index":0}\ndata: {"a":1}\n\n'
    b"event: named\r\ndata: one\r\ndata:two\r\nid: 7\r\n\r\n"
    b": alone\n\n"
    b"data: caf\xc3\xa9\r\rdata\n\n"
    b"data: [DONE]\n\n"
)
EVENTS = [
    Event(b'{"a":1}', b"", (b'headrace {"index":0}',)),
    Event(b"one\ntwo", b"named"),
    Event(None, b"", (b"alone",)),
    Event("café".encode()),
    Event(b""),
    Event(b"[DONE]"),
]


def test_a_whole_stream() -> None:
    events = parse(STREAM)
    assert events == EVENTS
    assert [event.is_end for event in events] == [False] * 5 + [True]


@pytest.mark.parametrize("cut", range(len(STREAM) + 1))
def test_any_cut_gives_the_same_events(cut: int) -> None:
    parser = EventParser()
    assert parser.feed(STREAM[:cut]) + parser.feed(STREAM[cut:]) == EVENTS
    assert parser.is_idle


def test_byte_by_byte() -> None:
    parser = EventParser()
    assert [e for i in range(len(STREAM)) for e in parser.feed(STREAM[i : i + 1])] == EVENTS


def test_what_is_not_ended_is_not_told() -> None:
    parser = EventParser()
    assert parser.feed(b"data: half\n") == []
    assert not parser.is_idle
    assert parser.feed(b"") == []
    assert parser.feed(b"\n") == [Event(b"half")]
    assert parser.is_idle


@pytest.mark.parametrize(
    "chunks",
    [
        [b"data: " + b"x" * 100],
        [b"data: x\n"] * 40,
        [b": y\n" * 40],
        [b"data: " + b"x" * 100 + b"\n\n"],
    ],
)
def test_an_event_has_a_bound(chunks: list[bytes]) -> None:
    parser = EventParser(max_event_bytes=64)
    with pytest.raises(StreamError, match="64 bytes"):
        list(map(parser.feed, chunks))


def test_the_bound_is_for_each_event() -> None:
    parser = EventParser(max_event_bytes=64)
    assert len(parser.feed(b"data: " + b"x" * 50 + b"\n\n" + b"data: " + b"y" * 50 + b"\n\n")) == 2
