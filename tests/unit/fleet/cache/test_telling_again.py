import json
from typing import Any
from zlib import crc32

import pytest

from headrace.fleet.cache.answers import Answer, pack, read_answer, unpack
from headrace.fleet.cache.telling import told_as_stream, told_whole
from headrace.fleet.sse import parse

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
HEAD = {"created": 17, "model": "m"}


def chunk(
    index: int, delta: dict[str, Any], end: str | None = None, **other: Any
) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": end, **other}
    return {"id": "old", "object": "chat.completion.chunk", **HEAD, "choices": [choice]}


def stream(*chunks: dict[str, Any] | str) -> bytes:
    texts = (c if isinstance(c, str) else json.dumps(c) for c in chunks)
    return "".join(f"data: {text}\n\n" for text in texts).encode()


def read(body: bytes, *, path: str = CHAT, is_stream: bool = True) -> Answer | None:
    answer = read_answer(path, body, is_stream=is_stream, now=100.0)
    return None if answer is None else unpack(pack(answer))


def retold(answer: Answer, *, with_usage: bool = False) -> list[dict[str, Any]]:
    events = parse(b"".join(told_as_stream(answer, "new", with_usage=with_usage)))
    assert events[-1].is_end
    return [json.loads(event.data or b"") for event in events[:-1]]


def whole(answer: Answer) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(told_whole(answer, "new"))
    return found


TALK = (
    chunk(0, {"role": "assistant", "content": ""}),
    chunk(0, {"reasoning_content": "Hm"}),
    chunk(0, {"content": "Fo"}, logprobs={"content": [{"token": "Fo"}]}),
    chunk(0, {"content": "ur"}, logprobs={"content": [{"token": "ur"}]}),
    chunk(0, {}, "stop", stop_reason=7),
)
USED = {"id": "old", "object": "chat.completion.chunk", **HEAD, "choices": [], "usage": USAGE}


def test_a_stream_is_told_as_it_was_with_a_new_id() -> None:
    answer = read(stream(*TALK, USED, "[DONE]"))
    assert answer is not None
    assert retold(answer) == [{**c, "id": "new"} for c in TALK]
    with_usage = retold(answer, with_usage=True)
    assert [c["usage"] for c in with_usage] == [None] * 5 + [USAGE]
    assert with_usage[-1]["choices"] == []


def test_a_stream_is_told_whole() -> None:
    answer = read(stream(*TALK, USED, "[DONE]"))
    assert answer is not None
    assert whole(answer) == {
        "id": "new", "object": "chat.completion", **HEAD, "usage": USAGE,
        "choices": [{
            "index": 0, "finish_reason": "stop", "stop_reason": 7,
            "message": {"role": "assistant", "content": "Four", "reasoning_content": "Hm"},
            "logprobs": {"content": [{"token": "Fo"}, {"token": "ur"}]},
        }],
    }  # fmt: skip


def test_calls_and_several_choices_are_put_together() -> None:
    first = {
        "index": 0,
        "id": "call_1",
        "type": "function",
        "function": {"name": "f", "arguments": ""},
    }
    second = {
        "index": 1,
        "id": "call_2",
        "type": "function",
        "function": {"name": "g", "arguments": "{}"},
    }
    more = {"index": 0, "function": {"arguments": '{"a"'}}
    end = {"index": 0, "function": {"arguments": ":1}"}}
    answer = read(
        stream(
            chunk(1, {"role": "assistant", "content": "B"}),
            chunk(0, {"role": "assistant", "content": ""}),
            chunk(0, {"tool_calls": [first]}),
            chunk(0, {"tool_calls": [more]}),
            chunk(1, {"content": "!"}, "length"),
            chunk(0, {"tool_calls": [end, second]}),
            chunk(0, {}, "tool_calls"),
            USED,
            "[DONE]",
        )
    )
    assert answer is not None
    zero, one = whole(answer)["choices"]
    assert zero["message"] == {
        "role": "assistant", "content": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
            {"id": "call_2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    }  # fmt: skip
    assert (zero["finish_reason"], one["finish_reason"]) == ("tool_calls", "length")
    assert one["message"] == {"role": "assistant", "content": "B!"}


def test_a_whole_answer_survives_the_way_over_a_stream() -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    said = {
        "id": "old", "object": "chat.completion", **HEAD, "usage": USAGE,
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop",
             "logprobs": {"content": [{"token": "Hi"}]}},
            {"index": 1, "message": {"role": "assistant", "content": None, "tool_calls": calls},
             "finish_reason": "tool_calls", "logprobs": None},
        ],
    }  # fmt: skip
    answer = read(json.dumps(said).encode(), is_stream=False)
    assert answer is not None
    assert whole(answer) == {**said, "id": "new"}
    told = b"".join(told_as_stream(answer, "old", with_usage=True))
    again = read(told)
    assert again is not None
    assert whole(again) == {**said, "id": "new"}


def test_completions_both_ways() -> None:
    def part(text: str, end: str | None, logprobs: Any) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": end}
        return {"id": "old", "object": "text_completion", **HEAD, "choices": [choice]}

    parts = (part("Fo", None, {"tokens": ["Fo"]}), part("ur", "stop", {"tokens": ["ur"]}))
    answer = read(stream(*parts, {**USED, "object": "text_completion"}, "[DONE]"), path=COMPLETIONS)
    assert answer is not None
    wanted = part("Four", "stop", {"tokens": ["Fo", "ur"]})
    assert whole(answer) == {**wanted, "id": "new", "usage": USAGE}
    assert retold(answer) == [{**p, "id": "new"} for p in parts]
    kept = read(told_whole(answer, "old"), path=COMPLETIONS, is_stream=False)
    assert kept is not None
    assert retold(kept) == [{**wanted, "id": "new"}]


def test_without_usage_a_stream_is_only_told_as_one() -> None:
    answer = read(stream(*TALK, "[DONE]"))
    assert answer is not None
    assert answer.can_tell(is_stream=True, with_usage=False)
    assert not answer.can_tell(is_stream=True, with_usage=True)
    assert not answer.can_tell(is_stream=False, with_usage=False)


def test_vectors_are_told_as_they_came() -> None:
    body = b'{"object":"list","data":[{"embedding":[0.1]}],"usage":{}}'
    answer = read(body, path="/v1/embeddings", is_stream=False)
    assert answer is not None
    assert told_whole(answer, "new") == body
    assert not answer.can_tell(is_stream=True, with_usage=False)


BAD_STREAMS = {
    "cut": stream(*TALK),
    "no choice ended": stream(*TALK[:-1], "[DONE]"),
    "one choice did not end": stream(*TALK, chunk(1, {"content": "x"}), "[DONE]"),
    "error": stream(*TALK, {"error": {"message": "x"}}, "[DONE]"),
    "ended with error": stream(*TALK[:-1], chunk(0, {}, "error"), "[DONE]"),
    "timeout": stream(*TALK[:-1], chunk(0, {}, "timeout"), "[DONE]"),
    "filtered": stream(*TALK[:-1], chunk(0, {}, "content_filter"), "[DONE]"),
    "more behind the end": stream(*TALK, "[DONE]", USED),
    "half an event": stream(*TALK) + b"data: [DONE]",
    "no JSON": stream(*TALK, "{", "[DONE]"),
    "no object": stream("3", "[DONE]"),
    "nothing": b"",
    "only the end": stream("[DONE]"),
    "no index": stream({"choices": [{"finish_reason": "stop"}]}, "[DONE]"),
}


@pytest.mark.parametrize("body", BAD_STREAMS.values(), ids=BAD_STREAMS)
def test_bad_streams_are_not_kept(body: bytes) -> None:
    assert read(body) is None


@pytest.mark.parametrize("cut", range(0, len(stream(*TALK, USED, "[DONE]")), 7))
def test_a_stream_that_is_cut_anywhere_is_not_kept(cut: int) -> None:
    assert read(stream(*TALK, USED, "[DONE]")[:cut]) is None


def test_what_one_chunk_has_is_told_in_that_one() -> None:
    tokens = list(range(5000))
    made = stream(
        {**HEAD, "choices": [], "prompt_filter_results": [1]},
        {**HEAD, "prompt_token_ids": tokens, "choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]},
        *({**HEAD, "choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": None}]} for _ in range(200)),
        {**HEAD, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {**HEAD, "choices": [], "usage": {"total_tokens": 1}, "timings": {"ms": 2}},
        "[DONE]",
    )  # fmt: skip
    answer = read(made)
    assert answer is not None
    told = b"".join(told_as_stream(answer, "n", with_usage=True))
    assert len(told) < 2 * len(made)
    chunks = [json.loads(one.data or b"") for one in parse(told)[:-1]]
    assert [at for at, one in enumerate(chunks) if "prompt_token_ids" in one] == [0]
    assert (chunks[0]["prompt_token_ids"], chunks[0]["prompt_filter_results"]) == (tokens, [1])
    assert [at for at, one in enumerate(chunks) if "timings" in one] == [len(chunks) - 1]
    assert all(one["model"] == "m" for one in chunks)
    whole = json.loads(told_whole(answer, "n"))
    assert (whole["prompt_token_ids"], whole["timings"]) == (tokens, {"ms": 2})


def test_what_a_whole_answer_has_is_told_once() -> None:
    choices = [
        {"index": n, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
        for n in range(20)
    ]
    whole = {**HEAD, "choices": choices, "usage": {}, "kv_transfer_params": {"a": 1}}
    answer = read_answer(
        "/v1/chat/completions", json.dumps(whole).encode(), is_stream=False, now=0.0
    )
    assert answer is not None
    told = b"".join(told_as_stream(answer, "n", with_usage=False))
    assert told.count(b"kv_transfer_params") == 1
    assert json.loads(told_whole(answer, "n"))["kv_transfer_params"] == {"a": 1}


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", b'{"error":{}}', b'{"choices":[]}', b'{"choices":[{"finish_reason":null}]}',
        b'{"choices":[{"finish_reason":"error"}]}', b'{"choices":["x"]}', b"[" * 50_000,
    ],
)  # fmt: skip
def test_bad_answers_are_not_kept(body: bytes) -> None:
    assert read(body, is_stream=False) is None


CHAT_ENTRY = b'{"path":"/v1/chat/completions","stored_at":0'
WHOLE_ENTRY = CHAT_ENTRY + b',"usage":{},"whole":{"choices":[{"finish_reason":"stop"}]}}'


def summed(data: bytes) -> bytes:
    return crc32(data).to_bytes(4, "big") + data


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{}", b"[1]", b"\xff", b'{"path":1,"stored_at":0}', CHAT_ENTRY + b"}", b'{"path":"/v1/embeddings","stored_at":0}',
        CHAT_ENTRY + b',"usage":{},"whole":{}}', CHAT_ENTRY + b',"usage":{},"whole":{"choices":3}}',
        CHAT_ENTRY + b',"usage":{},"whole":{"choices":[{}]}}', CHAT_ENTRY + b',"usage":{},"chunks":[[{}]]}',
        CHAT_ENTRY + b',"usage":{},"chunks":[[{"index":0,"delta":"x"}]]}',
    ],
)  # fmt: skip
def test_what_somebody_else_wrote_is_nothing(data: bytes) -> None:
    assert unpack(data) is None
    assert unpack(summed(data)) is None


def test_what_has_changed_in_its_store_is_nothing() -> None:
    assert unpack(summed(WHOLE_ENTRY)) is not None
    assert unpack(summed(WHOLE_ENTRY).replace(b"stop", b"step")) is None
    assert unpack(summed(WHOLE_ENTRY)[:-1]) is None
    assert unpack(WHOLE_ENTRY) is None


SAID = {"role": "assistant", "content": "x"}


@pytest.mark.parametrize(
    "choice",
    [
        {"message": "x"}, {"message": [SAID]}, {"message": {"tool_calls": "x"}}, {"message": {"tool_calls": ["x"]}},
        {"message": {"tool_calls": [{"function": "f"}]}}, {"message": {"tool_calls": [{"function": {"arguments": {}}}]}},
        {"message": SAID, "finish_reason": ["stop"]}, {"message": SAID, "index": "0"}, {"message": {"role": 3}},
    ],
)  # fmt: skip
def test_what_could_not_be_told_again_is_not_kept(choice: dict[str, Any]) -> None:
    whole = json.dumps({"choices": [{"index": 0, "finish_reason": "stop", **choice}]}).encode()
    assert read_answer("/v1/chat/completions", whole, is_stream=False, now=0.0) is None
    delta = {k: v for k, v in choice.items() if k != "message"} | {"delta": choice["message"]}
    assert (
        read(stream({"choices": [{"index": 0, "finish_reason": "stop", **delta}]}, "[DONE]"))
        is None
    )


@pytest.mark.parametrize(
    "body",
    [b"{}", b'{"data":[]}', b'{"status":"loading"}', b'{"data":null}', b"[]", b'{"data":"x"}'],
)
def test_what_holds_no_computed_answer_is_not_kept(body: bytes) -> None:
    assert read_answer("/v1/embeddings", body, is_stream=False, now=0.0) is None
