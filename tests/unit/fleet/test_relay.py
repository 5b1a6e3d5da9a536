"""A stream on its way through: every cut of its bytes gives the same bytes and the same progress."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.fleet.gateway import relay as relay_module
from headrace.fleet.gateway.progress import AnswerUsage, Progress, usage_of, usage_over_all
from headrace.fleet.gateway.relay import EventCutter, Relay
from headrace.fleet.upstream.failure import FailureKind, UpstreamError

DONE = b"data: [DONE]"


def comment(*ids: int) -> bytes:
    return b': headrace {"index":0,"token_ids":%s}\n' % json.dumps(ids).encode()


def chunk(text: str | None = None, **fields: object) -> bytes:
    choice = {"index": 0, "delta": {} if text is None else {"content": text}}
    choice["finish_reason"] = fields.pop("finish", None)
    value = {"id": "a", "created": 1, "choices": [choice], **fields}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def usage(prompt: int, output: int) -> bytes:
    told = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    return (
        b"data: "
        + json.dumps({"id": "a", "created": 1, "choices": [], "usage": told}).encode()
        + b"\n\n"
    )


def role() -> bytes:
    return b'data: {"id":"a","created":1,"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'


STREAM = (
    role()
    + comment(1)
    + chunk("one")
    + comment(2)
    + b"\n"  # its text is held back
    + comment(3)
    + comment(4)
    + chunk(" zwei: headrace {} é\u2028")
    + b": ping\n\n"
    + comment(5)
    + chunk("five", usage=None)
    + comment(6)
    + chunk("", finish="stop")
    + usage(7, 6)
    + b"data: [DONE]\n\n"
)
SHOWN = (
    role()
    + chunk("one")
    + chunk(" zwei: headrace {} é\u2028")
    + b": ping\n\n"
    + chunk("five", usage=None)
    + chunk("", finish="stop")
    + usage(7, 6)
    + b"data: [DONE]\n\n"
)


def make(progress: Progress | None = None, **options: object) -> Relay:
    given = {"ends": {"[DONE]"}, "drops_usage": False, "is_continuation": False, **options}
    return Relay(progress or Progress(), **given)


def feed(relay: Relay, data: bytes, *cuts: int) -> bytes:
    edges = [0, *sorted(cuts), len(data)]
    out = b"".join(relay.feed(data[a:b]) for a, b in itertools.pairwise(edges))
    relay.check()
    return out


@given(st.lists(st.integers(0, len(STREAM)), max_size=40), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_every_cut_gives_the_same(cuts, line_end):
    relay = make()
    stream = STREAM.replace(b"\n", line_end)
    # A line end that is a lone CR is known only by what comes behind it.
    out = feed(relay, stream + (b":\n" if line_end == b"\r" else b""), *cuts)
    assert out == SHOWN
    assert relay.progress.token_ids == [1, 2, 3, 4, 5, 6]
    assert relay.progress.usage == AnswerUsage(7, 0, 6)
    assert relay.progress.has_finished
    assert relay.progress.is_done
    assert relay.progress.name == {"id": "a", "created": 1}


def test_byte_by_byte():
    relay = make()
    assert b"".join(relay.feed(STREAM[i : i + 1]) for i in range(len(STREAM))) == SHOWN
    relay.check_end()
    assert relay.progress.token_ids == [1, 2, 3, 4, 5, 6]


@given(st.integers(0, len(STREAM)))
def test_what_was_counted_is_what_was_passed_on(at):
    """Wherever it breaks off, ids and events agree: the next replica sends what the client lacks."""
    relay = make()
    out = relay.feed(STREAM[:at])
    shown = {1: b'"one"', 4: b"zwei", 5: b'"five"', 6: b'"stop"'}
    for token, text in shown.items():
        assert (token in relay.progress.token_ids) == (text in out), token
    assert relay.progress.num_tokens == len(relay.progress.token_ids)


@pytest.mark.parametrize(
    "bad",
    [
        b': headrace {"index":0,"token_ids":["x"]}\ndata: {"choices":[{"delta":{"content":"bad"}}]}\n\n',
        b"data: {garbage\n\n",
        b'data: {"error":{"message":"died"}}\n\n',
        b'data: {"object":"error","message":"died"}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"bad"},"finish_reason":"error"}]}\n\n',
        b'data: {"choices":{"finish_reason":"x"}}\n\n',
        b'data: {"choices":[1],"usage":{}}\n\n',
    ],
)
def test_nothing_of_a_bad_event_counts(bad):
    relay = make()
    relay.feed(role())
    # The bad one is read because something in its piece is news.
    out = relay.feed(comment(1) + chunk("one") + bad + comment(3) + chunk("more", finish="stop"))
    assert out == chunk("one")
    assert relay.progress.token_ids == [1]
    assert not relay.progress.has_finished
    with pytest.raises(UpstreamError):
        relay.check()


def test_usage_is_dropped_only_where_it_is_ours():
    relay = make(drops_usage=True)
    out = feed(relay, STREAM)
    assert b"usage" not in out
    assert relay.progress.usage == AnswerUsage(7, 0, 6)
    assert b"usage" in feed(make(), STREAM)


def test_a_continuation_is_a_part_of_the_same_answer():
    progress = Progress()
    feed(make(progress), role() + comment(1) + chunk("one"))
    second = role().replace(b'"a"', b'"b"') + comment(2) + chunk("two", id="b", created=9)
    out = feed(make(progress, is_continuation=True), second)
    assert [json.loads(line[6:]) for line in out.split(b"\n\n")[:-1]] == [
        json.loads(chunk("two")[6:])
    ]
    assert progress.token_ids == [1, 2]


def test_usage_after_a_continuation_by_text_is_of_the_whole_answer():
    progress = Progress(keeps_text=True)
    feed(make(progress), role() + chunk("one") + chunk("two"))
    relay = make(progress, is_continuation=True)
    # It takes the two tokens for a part of its prompt.
    out = feed(relay, chunk("three", finish="stop") + usage(12, 1) + b"data: [DONE]\n\n")
    assert progress.usage == AnswerUsage(10, 0, 3)
    assert b'"prompt_tokens":10' in out
    assert b'"completion_tokens":3' in out
    assert b'"total_tokens":13' in out
    assert progress.as_wire().text == "onetwothree"


def test_usage_over_all_keeps_what_it_does_not_know():
    told = {
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 5, "x": 1},
        "y": 2,
    }
    assert usage_over_all(told, 3) == {
        "prompt_tokens": 2,
        "completion_tokens": 5,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 2, "x": 1},
        "y": 2,
    }


def test_usage_of_anthropics_events_is_put_together():
    relay = make(ends={"message_stop"})
    stream = (
        b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":9,"output_tokens":1}}}\n\n'
        b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":4}}\n\n'
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    )
    assert feed(relay, stream) == stream
    relay.check_end()
    assert relay.progress.usage == AnswerUsage(9, 0, 4)


@pytest.mark.parametrize("rest", [b"", b"data: {", b"data: [DO"])
def test_an_end_without_its_marker_is_a_cut(rest):
    relay = make()
    feed(relay, role() + chunk("one") + rest)
    with pytest.raises(UpstreamError) as caught:
        relay.check_end()
    assert caught.value.kind is FailureKind.CUT


def test_text_that_looks_like_an_end_is_none():
    relay = make(Progress(keeps_text=True))
    feed(relay, role() + chunk("data: [DONE]") + chunk('"finish_reason": "stop"'))
    assert not relay.progress.is_done
    assert not relay.progress.has_finished


def test_an_event_without_end_is_refused(monkeypatch):
    monkeypatch.setattr(relay_module, "MAX_EVENT_BYTES", 1000)
    cutter = EventCutter()
    for _ in range(20):
        assert cutter.feed(b"x" * 50) == b""
    with pytest.raises(UpstreamError, match="without end"):
        cutter.feed(b"x")


def test_what_a_stream_lacks_is_added():
    progress = Progress(keeps_text=True)
    feed(make(progress), role() + chunk("one"))
    ending = progress.ending("m", is_chat=True)
    assert ending.endswith(b"data: [DONE]\n\n")
    said = json.loads(ending.split(b"\n\n")[0][6:])
    assert (said["id"], said["choices"][0]["finish_reason"]) == ("a", "length")
    progress.has_finished = True
    assert progress.ending("m", is_chat=True) == b"data: [DONE]\n\n"
    progress.is_done = True
    assert progress.ending("m", is_chat=False) == b""


def test_anthropics_cached_tokens_are_a_part_of_the_prompt_too():
    told = {"input_tokens": 10, "output_tokens": 2}
    assert usage_of(told) == AnswerUsage(10, 0, 2)
    cached = {**told, "cache_read_input_tokens": 5000, "cache_creation_input_tokens": 70}
    assert usage_of(cached) == AnswerUsage(5080, 5000, 2)
    assert usage_of({**cached, "cache_read_input_tokens": None}) == AnswerUsage(80, 0, 2)


@pytest.mark.parametrize(
    "delta",
    [{"reasoning_content": "so"}, {"reasoning": "so"}, {"tool_calls": [{"index": 0}]}, {"content": "so"}],
)  # fmt: skip
def test_whatever_a_model_makes_counts_as_its_first_token(delta):
    """Also where the answer is gone on with by its text: one that thinks has begun with its first thought."""
    value = {"id": "a", "created": 1, "choices": [{"index": 0, "delta": delta}]}
    relay = Relay(
        Progress(keeps_text=True), ends={"[DONE]"}, drops_usage=False, is_continuation=False
    )
    relay.feed(role())
    assert relay.take_new() == 0
    relay.feed(b"data: " + json.dumps(value).encode() + b"\n\n")
    assert relay.take_new() == 1
