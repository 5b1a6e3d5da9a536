import json
from typing import Any

import pytest
from anthropic.types import MessageCreateParams
from msgspec import convert
from tests.support.wire_answers import (
    assert_cuts_do_not_matter,
    backend,
    call,
    chunks,
    read,
    sent,
    sse,
)

from headrace.api.messages import MessagesRequest
from headrace.config.secret import Secret
from headrace.core.errors import BadRequestError
from headrace.fleet.backends.values import COMPLETIONS

USER = {"role": "user", "content": "Hi"}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "d", "parameters": {"type": "object"}},
}
CALL = {
    "id": "t1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city":"Ulm"}'},
}
assert MessageCreateParams  # the package is there, as a reader's pointer to the shapes


def test_a_conversation_with_everything() -> None:
    body = {
        "model": "claude-x",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": [{"type": "text", "text": "And kind."}]},
            {"role": "user", "content": [
                {"type": "text", "text": "Look:"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
                {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
            ]},
            {"role": "assistant", "content": "I will.", "tool_calls": [CALL, {**CALL, "id": "t2"}]},
            {"role": "tool", "tool_call_id": "t1", "content": "rain"},
            {"role": "tool", "tool_call_id": "t2", "content": [{"type": "text", "text": "sun"}]},
            USER,
        ],
        "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False,
        "max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "stop": "END", "stream": True,
        "user": "u1", "seed": 4, "n": 1, "logprobs": False, "presence_penalty": 0.0,
    }  # fmt: skip
    request = sent(backend("anthropic"), body)
    assert request == {
        "model": "claude-x", "max_tokens": 9, "system": "Be brief.\n\nAnd kind.", "stream": True,
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "stop_sequences": ["END"],
        "metadata": {"user_id": "u1"},
        "tools": [{"name": "weather", "description": "d", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "Look:"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}},
                {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
            ]},
            {"role": "assistant", "content": [
                {"type": "text", "text": "I will."},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Ulm"}},
                {"type": "tool_use", "id": "t2", "name": "weather", "input": {"city": "Ulm"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "rain"}]},
                {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "sun"}]},
                {"type": "text", "text": "Hi"},
            ]},
        ],
    }  # fmt: skip
    convert(request, MessagesRequest)  # our own reading of the same API takes it


def test_address_key_and_defaults() -> None:
    found = backend("anthropic", "https://api.anthropic.com/v1", api_key=Secret("k"))
    outgoing = found.outgoing(call({"model": "c", "messages": [USER]}))
    assert outgoing.path == "/v1/messages"
    assert outgoing.headers["x-api-key"] == "k"
    assert outgoing.headers["anthropic-version"] == "2023-06-01"
    assert "authorization" not in outgoing.headers
    assert json.loads(outgoing.body)["max_tokens"] == 4096
    own = call({"x": 1}, "/v1/messages")
    assert (found.outgoing(own).body, found.reader(own, {})) == (own.body, None)


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ("auto", {"type": "auto"}),
        ("none", {"type": "none"}),
        (
            {"type": "function", "function": {"name": "weather"}},
            {"type": "tool", "name": "weather"},
        ),
    ],
)
def test_tool_choices(choice: Any, wanted: dict[str, Any]) -> None:
    body = {"messages": [USER], "tools": [TOOL], "tool_choice": choice}
    assert sent(backend("anthropic"), body)["tool_choice"] == wanted


def test_structured_output() -> None:
    schema = {"type": "object"}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    request = sent(backend("anthropic"), {"messages": [USER], "response_format": form})
    assert request["output_config"] == {"format": {"type": "json_schema", "schema": schema}}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"logit_bias": {"1": 5}}, "logit_bias"),
        ({"frequency_penalty": 0.1}, "frequency_penalty"),
        ({"a_field_of_tomorrow": 1}, "a_field_of_tomorrow"),
        ({"temperature": 1.5}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": 3}, "stop"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"function": {"name": "x"}}}, "tool_choice"),
        ({"tools": [{"type": "custom"}]}, "tools[0]"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": []}, "messages"),
        ({"messages": [3]}, "messages[0]"),
        ({"messages": [{"role": "robot"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "tool_call_id": "t", "content": ""}]}, "messages[0].tool_call_id"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "["}}]}]},
            "messages[0].tool_calls[0]",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///x"}}]}]},
            "messages[0].content[0]",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_said_is_refused(change: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        backend("anthropic").outgoing(call({"messages": [USER], **change}))
    assert caught.value.param == param


def test_completions_are_refused() -> None:
    with pytest.raises(BadRequestError, match="/v1/completions"):
        backend("anthropic").outgoing(call({"prompt": "x"}, COMPLETIONS))


ANSWER = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x",
    "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Ulm"}},
    ],
    "stop_reason": "tool_use", "stop_sequence": None,
    "usage": {
        "input_tokens": 10, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 5,
        "output_tokens": 20,
    },
}  # fmt: skip
USAGE = {
    "prompt_tokens": 115, "completion_tokens": 20, "total_tokens": 135,
    "prompt_tokens_details": {"cached_tokens": 100},
}  # fmt: skip


def test_a_whole_answer() -> None:
    told, reader = read(
        backend("anthropic"), call({"model": "m", "messages": [USER]}), json.dumps(ANSWER).encode()
    )
    assert reader.content_type == "application/json"
    assert reader.is_complete
    assert json.loads(told) == {
        "id": "chatcmpl-r1", "object": "chat.completion", "created": 1_700_000_000, "model": "m",
        "choices": [{
            "index": 0, "logprobs": None, "finish_reason": "tool_calls",
            "message": {
                "role": "assistant", "content": "Let me see.", "reasoning_content": "Hm.", "tool_calls": [CALL],
            },
        }],
        "usage": USAGE,
    }  # fmt: skip


STREAM = sse(
    {"type": "message_start", "message": {**ANSWER, "content": [], "usage": {**ANSWER["usage"], "output_tokens": 1}}},  # type: ignore[dict-item]
    {"type": "ping"},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Hm."}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "s"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Let mé "}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "see."}},
    {"type": "content_block_stop", "index": 1},
    {"type": "content_block_start", "index": 2,
     "content_block": {"type": "tool_use", "id": "t1", "name": "weather", "input": {}}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"city":'}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '"Ulm"}'}},
    {"type": "content_block_stop", "index": 2},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 20}},
    {"type": "message_stop"},
    names=True,
)  # fmt: skip


def test_a_stream_however_it_is_cut() -> None:
    asked = call(
        {
            "model": "m",
            "messages": [USER],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
    events = chunks(assert_cuts_do_not_matter(backend("anthropic"), asked, STREAM))
    assert {e["id"] for e in events} == {"chatcmpl-r1"}
    deltas = [e["choices"][0]["delta"] for e in events if e["choices"]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(d.get("content", "") for d in deltas) == "Let mé see."
    assert "".join(d.get("reasoning_content", "") for d in deltas) == "Hm."
    calls = [d["tool_calls"][0] for d in deltas if "tool_calls" in d]
    assert calls[0] == {**CALL, "index": 0, "function": {"name": "weather", "arguments": ""}}
    assert "".join(c["function"]["arguments"] for c in calls) == '{"city":"Ulm"}'
    assert [e["choices"][0]["finish_reason"] for e in events[:-1]][-1] == "tool_calls"
    assert (events[-1]["choices"], events[-1]["usage"]) == ([], USAGE)


def test_usage_is_only_told_when_it_is_asked_for_but_always_known() -> None:
    asked = call({"messages": [USER], "stream": True})
    told, reader = read(backend("anthropic"), asked, STREAM)
    assert not any("usage" in event for event in chunks(told))
    assert reader.usage is not None
    assert reader.usage.total_tokens == 135


@pytest.mark.parametrize("cut", range(0, len(STREAM) - 1, 13))
def test_a_stream_that_is_cut_off_is_not_complete(cut: int) -> None:
    asked = call({"messages": [USER], "stream": True})
    told, reader = read(backend("anthropic"), asked, STREAM[:cut])
    assert not reader.is_complete
    assert b"[DONE]" not in told


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("end_turn", "stop"), ("max_tokens", "length"), ("stop_sequence", "stop"), ("refusal", "content_filter"),
        ("model_context_window_exceeded", "length"), ("something_new", "content_filter"),
    ],
)  # fmt: skip
def test_stop_reasons(theirs: str, ours: str) -> None:
    said = {**ANSWER, "content": [{"type": "text", "text": "x"}], "stop_reason": theirs}
    told, _ = read(backend("anthropic"), call({"messages": [USER]}), json.dumps(said).encode())
    assert json.loads(told)["choices"][0]["finish_reason"] == ours


def test_errors() -> None:
    found = backend("anthropic")
    body = b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":"q"}'
    refusal = found.refusal(529, {"retry-after": "3"}, body)
    assert (refusal.status, refusal.retry_after, refusal.is_overload) == (503, 3.0, True)
    assert json.loads(refusal.body)["error"]["message"] == "Overloaded"
    inside = sse({"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}})
    told, reader = read(found, call({"messages": [USER], "stream": True}), inside + STREAM)
    assert told == b""
    assert reader.refusal is not None
    assert reader.refusal.status == 429
