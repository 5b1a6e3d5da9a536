import json
from typing import Any

import pytest
from tests.support.wire_answers import (
    assert_cuts_do_not_matter,
    backend,
    call,
    chunks,
    read,
    sent,
    sse,
)

from headrace.config.secret import Secret
from headrace.core.errors import BadRequestError
from headrace.fleet.backends.values import COMPLETIONS, ModelCard

GEMINI = "https://generativelanguage.googleapis.com/v1beta"
VERTEX = "https://eu-aiplatform.googleapis.com/v1/projects/p/locations/eu"
USER = {"role": "user", "content": "Hi"}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "d", "parameters": {"type": "object"}},
}
SIGNED = {"google": {"thought_signature": "sig"}}
CALL = {
    "id": "t1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Ulm"}'},
    "extra_content": SIGNED,
}  # fmt: skip
PNG = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
GS = {"type": "image_url", "image_url": {"url": "gs://b/y.webp"}}


def test_a_conversation_with_everything() -> None:
    body = {
        "model": "gemini-x", "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Look"}, PNG, GS]},
            {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "t2", "extra_content": None}]},
            {"role": "tool", "tool_call_id": "t1", "content": '{"sky":"rain"}'},
            {"role": "tool", "tool_call_id": "t2", "content": "sun"},
        ],
        "tools": [TOOL], "max_tokens": 9, "temperature": 1.5, "top_p": 0.9, "top_k": 5, "n": 2, "seed": 3,
        "presence_penalty": 0.1, "frequency_penalty": 0.2, "stop": ["END"],
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
    }  # fmt: skip
    called = {"functionCall": {"name": "weather", "args": {"city": "Ulm"}}}
    assert sent(backend("vertex"), body) == {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            {"role": "user", "parts": [
                {"text": "Look"},
                {"inlineData": {"mimeType": "image/png", "data": "QUJD"}},
                {"fileData": {"mimeType": "image/webp", "fileUri": "gs://b/y.webp"}},
            ]},
            {"role": "model", "parts": [{**called, "thoughtSignature": "sig"}, called]},
            {"role": "user", "parts": [
                {"functionResponse": {"name": "weather", "response": {"sky": "rain"}}},
                {"functionResponse": {"name": "weather", "response": {"output": "sun"}}},
            ]},
        ],
        "tools": [{"functionDeclarations": [
            {"name": "weather", "description": "d", "parametersJsonSchema": {"type": "object"}},
        ]}],
        "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
        "generationConfig": {
            "maxOutputTokens": 9, "temperature": 1.5, "topP": 0.9, "topK": 5, "candidateCount": 2, "seed": 3,
            "presencePenalty": 0.1, "frequencyPenalty": 0.2, "stopSequences": ["END"],
            "responseMimeType": "application/json", "responseJsonSchema": {"type": "object"},
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ("none", {"mode": "NONE"}),
        ("required", {"mode": "ANY"}),
        (
            {"type": "function", "function": {"name": "weather"}},
            {"mode": "ANY", "allowedFunctionNames": ["weather"]},
        ),
    ],
)
def test_tool_choices(choice: Any, wanted: dict[str, Any]) -> None:
    body = {"messages": [USER], "tools": [TOOL], "tool_choice": choice}
    assert sent(backend("vertex"), body)["toolConfig"] == {"functionCallingConfig": wanted}


def test_addresses_and_keys() -> None:
    body = {"model": "gemini-x", "messages": [USER]}
    vertex = backend("vertex", VERTEX, api_key=Secret("k"))
    outgoing = vertex.outgoing(call(body))
    assert (
        outgoing.path
        == "/v1/projects/p/locations/eu/publishers/google/models/gemini-x:generateContent"
    )
    assert outgoing.headers["authorization"] == "Bearer k"
    assert vertex.models_probe() is None
    gemini = backend("vertex", GEMINI, api_key=Secret("k"))
    outgoing = gemini.outgoing(call({**body, "stream": True}))
    assert outgoing.path == "/v1beta/models/gemini-x:streamGenerateContent?alt=sse"
    assert outgoing.headers["x-goog-api-key"] == "k"
    assert "authorization" not in outgoing.headers
    probe = gemini.models_probe()
    assert probe is not None
    assert probe.path == "/v1beta/models"
    listed = b'{"models":[{"name":"models/gemini-x","inputTokenLimit":1048576},{"name":3}]}'
    assert gemini.read_models(200, listed) == (ModelCard(id="gemini-x", max_context=1048576),)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        (VERTEX, "/v1/projects/p/locations/eu/endpoints/openapi/chat/completions"),
        (GEMINI, "/v1beta/openai/chat/completions"),
    ],
)
def test_the_compatible_route_passes_through(url: str, path: str) -> None:
    found = backend("vertex", url, api="openai", api_key=Secret("k"))
    asked = call({"model": "google/gemini-x", "messages": [USER], "logprobs": True})
    outgoing = found.outgoing(asked)
    assert (outgoing.path, outgoing.body) == (path, asked.body)
    assert outgoing.headers["authorization"] == "Bearer k"
    assert found.reader(asked, {}) is None


def test_what_cannot_be_said_is_refused() -> None:
    for change in (
        {"logprobs": True},
        {"response_format": {"type": "grammar"}},
        {"logit_bias": {"1": 1}},
    ):
        with pytest.raises(BadRequestError):
            backend("vertex").outgoing(call({"messages": [USER], **change}))
    with pytest.raises(BadRequestError):
        backend("vertex").outgoing(call({"prompt": "x"}, COMPLETIONS))


def part(
    *parts: dict[str, Any], index: int = 0, end: str | None = None, **more: Any
) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, "index": index}
    if end:
        candidate["finishReason"] = end
    return {"candidates": [candidate], "modelVersion": "gemini-x-001", **more}


COUNTED = {
    "usageMetadata": {
        "promptTokenCount": 10, "candidatesTokenCount": 4, "thoughtsTokenCount": 3, "cachedContentTokenCount": 2,
        "totalTokenCount": 17,
    }
}  # fmt: skip
USAGE = {
    "prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 17, "prompt_tokens_details": {"cached_tokens": 2},
}  # fmt: skip
CALLED = {"functionCall": {"name": "weather", "args": {"city": "Ulm"}}, "thoughtSignature": "sig"}


def test_a_whole_answer() -> None:
    said = part(
        {"text": "Hm.", "thought": True}, {"text": "Let me see."}, CALLED, end="STOP", **COUNTED
    )
    told, reader = read(backend("vertex"), call({"messages": [USER]}), json.dumps(said).encode())
    assert reader.is_complete
    answer = json.loads(told)
    made = {**CALL, "id": "call_r1_0_0"}
    assert answer["choices"][0]["message"] == {
        "role": "assistant", "content": "Let me see.", "reasoning_content": "Hm.", "tool_calls": [made],
    }  # fmt: skip
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    assert answer["usage"] == USAGE


STREAM = sse(
    part({"text": "Hm.", "thought": True}),
    part({"text": "Let mé "}),
    part({"text": "Other"}, index=1),
    part({"text": "see."}),
    part(CALLED),
    part(index=1, end="MAX_TOKENS"),
    part({"text": ""}, end="STOP", **COUNTED),
)
ASKED = call(
    {
        "model": "m",
        "messages": [USER],
        "n": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
)


def test_a_stream_however_it_is_cut() -> None:
    events = chunks(assert_cuts_do_not_matter(backend("vertex"), ASKED, STREAM))
    texts = {0: "", 1: ""}
    for event in events[:-1]:
        choice = event["choices"][0]
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == {0: "Let mé see.", 1: "Other"}
    ends = [e["choices"][0] for e in events[:-1] if e["choices"][0]["finish_reason"]]
    assert [(e["index"], e["finish_reason"]) for e in ends] == [(0, "tool_calls"), (1, "length")]
    assert events[-1]["usage"] == USAGE


@pytest.mark.parametrize("cut", range(0, STREAM.rindex(b"data:"), 17))
def test_a_stream_that_is_cut_off_is_not_complete(cut: int) -> None:
    told, reader = read(backend("vertex"), ASKED, STREAM[:cut])
    assert not reader.is_complete
    assert b"[DONE]" not in told


def test_a_prompt_that_is_blocked() -> None:
    said = {"promptFeedback": {"blockReason": "SAFETY"}, **COUNTED}
    told, _ = read(backend("vertex"), call({"messages": [USER]}), json.dumps(said).encode())
    assert json.loads(told)["choices"][0]["finish_reason"] == "content_filter"


@pytest.mark.parametrize("wrap", ["{}", "[{}]"])
def test_errors(wrap: str) -> None:
    delay = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "12.5s"}
    error = {
        "error": {
            "code": 429,
            "message": "Quota",
            "status": "RESOURCE_EXHAUSTED",
            "details": [delay],
        }
    }
    body = wrap.replace("{}", json.dumps(error)).encode()
    refusal = backend("vertex").refusal(429, {}, body)
    assert (refusal.status, refusal.retry_after, refusal.is_overload) == (429, 12.5, True)
    assert json.loads(refusal.body)["error"]["message"] == "Quota"


def test_an_error_inside_the_stream() -> None:
    _, reader = read(backend("vertex"), ASKED, sse({"error": {"code": 503, "message": "Busy"}}))
    assert reader.refusal is not None
    assert reader.refusal.status == 503
    assert not reader.is_complete
