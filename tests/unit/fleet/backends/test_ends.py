"""How answers end, in every dialect that is translated: nothing that went wrong looks like an answer that is done."""

import json
from typing import Any

import pytest
from tests.support.wire_answers import backend, call, chunks, read, sse

from headrace.core.errors import BadRequestError
from headrace.fleet.backends import anthropic, converse, gemini, tgi
from headrace.fleet.backends.eventstream import frame
from headrace.fleet.backends.translating import FAILED, WRONG
from headrace.fleet.backends.values import CHAT, COMPLETIONS
from headrace.fleet.sse import StreamError

USER = {"role": "user", "content": "Hi"}
TABLES = {
    "anthropic": anthropic._ENDS,
    "bedrock": converse._ENDS,
    "vertex": gemini._ENDS,
    "tgi": tgi._ENDS,
}
#: Words of the protocols' documents that are neither an end, a bound nor a filter.
FAILURES = [
    ("vertex", "MALFORMED_FUNCTION_CALL"), ("vertex", "UNEXPECTED_TOOL_CALL"), ("vertex", "OTHER"),
    ("bedrock", "malformed_model_output"), ("bedrock", "malformed_tool_use"),
]  # fmt: skip
OPENAI = {"stop", "length", "tool_calls", "content_filter"}


def framed(kind: str, value: dict[str, Any]) -> bytes:
    headers = {":message-type": "event", ":event-type": kind}
    return frame(headers, json.dumps(value).encode())


def streamed(dialect: str, word: Any) -> bytes:
    """A text and how it ended."""
    if dialect == "anthropic":
        return sse(
            {"type": "message_start", "message": {"usage": {"input_tokens": 3}}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x"}},
            {"type": "message_delta", "delta": {"stop_reason": word}, "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
        )  # fmt: skip
    if dialect == "bedrock":
        return (
            framed("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "x"}})
            + framed("messageStop", {"stopReason": word})
            + framed("metadata", {"usage": {"inputTokens": 3, "outputTokens": 1}})
        )
    if dialect == "vertex":
        parts = {"parts": [{"text": "x"}]}
        return sse({"candidates": [{"content": parts, "finishReason": word}]})
    details = {"finish_reason": word, "generated_tokens": 1, "input_length": 3}
    return sse({"token": {"text": "x"}, "generated_text": "x", "details": details})


def whole(dialect: str, word: Any) -> bytes:
    if dialect == "anthropic":
        said: Any = {"content": [{"type": "text", "text": "x"}], "stop_reason": word, "usage": {}}
    elif dialect == "bedrock":
        said = {"output": {"message": {"content": [{"text": "x"}]}}, "stopReason": word}
    else:
        return streamed(dialect, word)  # TGI's is a stream in any case
    return json.dumps(said).encode()


def answer(dialect: str, word: Any, *, is_stream: bool) -> tuple[list[dict[str, Any]], Any]:
    """The choices that a client gets, and the reader."""
    api = "native" if dialect == "tgi" else "auto"
    asked = {"model": "m", "stream": is_stream}
    path = COMPLETIONS if dialect == "tgi" else CHAT
    asked |= {"prompt": "Hi"} if dialect == "tgi" else {"messages": [USER]}
    if dialect == "vertex" and not is_stream:
        parts = {"parts": [{"text": "x"}]}
        sent = json.dumps({"candidates": [{"content": parts, "finishReason": word}]}).encode()
    else:
        sent = streamed(dialect, word) if is_stream else whole(dialect, word)
    told, reader = read(backend(dialect, api=api), call(asked, path), sent)
    if not reader.is_complete:
        return [], reader
    if not is_stream:
        return json.loads(told)["choices"], reader
    return [choice for chunk in chunks(told) for choice in chunk["choices"]], reader


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("dialect", TABLES)
def test_every_known_end_has_a_word_of_openais(dialect, is_stream):
    for word, wanted in TABLES[dialect].items():
        choices, reader = answer(dialect, word, is_stream=is_stream)
        if wanted in (FAILED, WRONG):
            is_failed = wanted == FAILED
            assert reader.refusal.status == (502 if is_failed else 400)
            assert reader.refusal.is_of_model is reader.refusal.is_retryable is is_failed
        else:
            assert wanted in OPENAI
            assert choices[-1]["finish_reason"] == wanted
            assert "native_finish_reason" not in choices[-1]


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("dialect", TABLES)
def test_an_end_that_nobody_knows_is_not_told_as_a_good_one(dialect, is_stream):
    choices, reader = answer(dialect, "A_NEW_WORD", is_stream=is_stream)
    assert reader.is_complete
    assert choices[-1]["finish_reason"] == "content_filter"
    assert choices[-1]["native_finish_reason"] == "A_NEW_WORD"


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("dialect", "word"), FAILURES)
def test_a_model_that_failed_is_an_error_and_says_how(dialect, word, is_stream):
    _, reader = answer(dialect, word, is_stream=is_stream)
    assert not reader.is_complete
    assert reader.refusal.is_retryable
    assert word in reader.refusal.body.decode()


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_a_missing_signature_is_the_clients_fault(is_stream):
    _, reader = answer("vertex", "MISSING_THOUGHT_SIGNATURE", is_stream=is_stream)
    assert reader.refusal.status == 400


@pytest.mark.parametrize("word", [None, "", 5])
@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("dialect", TABLES)
def test_without_a_reason_it_has_not_ended(dialect, is_stream, word):
    if dialect == "vertex":
        assert not answer(dialect, word, is_stream=is_stream)[1].is_complete
        return
    with pytest.raises(StreamError):
        answer(dialect, word, is_stream=is_stream)


@pytest.mark.parametrize("dialect", ["anthropic", "bedrock"])
def test_an_object_that_is_no_answer_is_none(dialect):
    for said in (b"{}", b'{"usage": {}}', b'{"message": "moved"}'):
        with pytest.raises(StreamError):
            read(backend(dialect), call({"model": "m", "messages": [USER]}), said)


def test_a_call_without_arguments_has_an_empty_object_of_them():
    """Anthropic and Bedrock stream no piece, or an empty one, for a tool that takes nothing."""
    asked = call({"model": "m", "messages": [USER], "stream": True})
    empty = {"type": "input_json_delta", "partial_json": ""}
    told_anthropic = sse(
        {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "a", "name": "now"}},
        {"type": "content_block_delta", "index": 0, "delta": empty},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "b", "name": "at"}},
        {"type": "content_block_delta", "index": 1, "delta": {**empty, "partial_json": '{"x":1}'}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        {"type": "message_stop"},
    )  # fmt: skip

    def start(number: int, name: str) -> bytes:
        use = {"toolUse": {"toolUseId": name, "name": name}}
        return framed("contentBlockStart", {"contentBlockIndex": number, "start": use})

    used = {"contentBlockIndex": 1, "delta": {"toolUse": {"input": '{"x":1}'}}}
    told_bedrock = b"".join((
        start(0, "now"), start(1, "at"), framed("contentBlockDelta", used),
        framed("messageStop", {"stopReason": "tool_use"}), framed("metadata", {}),
    ))  # fmt: skip
    for dialect, said in (("anthropic", told_anthropic), ("bedrock", told_bedrock)):
        told, _ = read(backend(dialect), asked, said)
        arguments: dict[int, str] = {}
        events = chunks(told)
        for event in events:
            for made in event["choices"][0]["delta"].get("tool_calls", ()):
                known = arguments.get(made["index"], "")
                arguments[made["index"]] = known + made["function"]["arguments"]
        assert arguments == {0: "{}", 1: '{"x":1}'}
        assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("code", "status", "is_overload"),
    [("ThrottlingException", 429, True), ("InternalServerException", 500, False), ("new", 500, False)],
)  # fmt: skip
def test_an_error_that_bedrock_does_not_model_has_no_payload(code, status, is_overload):
    headers = {":message-type": "error", ":error-code": code, ":error-message": "too much"}
    asked = call({"model": "m", "messages": [USER], "stream": True})
    _, reader = read(backend("bedrock"), asked, frame(headers, b""))
    assert reader.refusal is not None
    assert (reader.refusal.status, reader.refusal.is_overload) == (status, is_overload)
    assert b"too much" in reader.refusal.body


@pytest.mark.parametrize("given", [5, True, "x", {"a": 1}])
@pytest.mark.parametrize("dialect", ["anthropic", "bedrock", "vertex"])
def test_lists_that_are_none_are_the_clients_fault(dialect, given):
    called = {"role": "assistant", "content": None, "tool_calls": given}
    for body, param in (
        ({"messages": [USER], "tools": given}, "tools"),
        ({"messages": [USER, called]}, "messages[1].tool_calls"),
    ):
        with pytest.raises(BadRequestError) as caught:
            backend(dialect).outgoing(call({"model": "m", **body}))
        assert caught.value.param == param
