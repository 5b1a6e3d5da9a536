import base64
import json
from datetime import UTC, datetime
from typing import Any
from unittest import mock

import botocore.auth
import botocore.loaders
import botocore.validate
import msgspec
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from botocore.eventstream import EventStreamBuffer
from botocore.model import ServiceModel
from tests.support.wire_answers import (
    URLS,
    assert_cuts_do_not_matter,
    backend,
    call,
    chunks,
    read,
    sent,
)

from headrace.config.secret import Secret
from headrace.core.errors import BadRequestError, ConfigError
from headrace.fleet.backends.eventstream import Frame, FrameParser, frame
from headrace.fleet.sse import StreamError

USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = {
    "id": "t1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city":"Ulm"}'},
}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
BODY: dict[str, Any] = {
    "model": "anthropic.claude-x-v1:0",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Look"}, IMAGE]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "t1", "content": "rain"},
    ],
    "tools": [TOOL], "max_completion_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "stop": ["END"],
}  # fmt: skip
WANTED = {
    "system": [{"text": "Be brief."}],
    "messages": [
        {"role": "user", "content": [
            {"text": "Look"}, {"image": {"format": "png", "source": {"bytes": "QUJD"}}},
        ]},
        {"role": "assistant", "content": [
            {"toolUse": {"toolUseId": "t1", "name": "weather", "input": {"city": "Ulm"}}},
        ]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "t1", "content": [{"text": "rain"}]}}]},
    ],
    "inferenceConfig": {"maxTokens": 9, "temperature": 0.5, "topP": 0.9, "stopSequences": ["END"]},
    "additionalModelRequestFields": {"top_k": 5},
    "toolConfig": {
        "tools": [{"toolSpec": {"name": "weather", "inputSchema": {"json": {"type": "object"}}}}],
        "toolChoice": {"auto": {}},
    },
}  # fmt: skip


def test_the_request() -> None:
    request = sent(backend("bedrock"), BODY)
    assert request == WANTED


def test_the_request_is_what_amazons_own_model_of_the_service_takes() -> None:
    loaded = botocore.loaders.Loader().load_service_model("bedrock-runtime", "service-2")
    shape = ServiceModel(loaded).operation_model("Converse").input_shape
    request = sent(backend("bedrock"), BODY)
    source = request["messages"][0]["content"][1]["image"]["source"]
    source["bytes"] = base64.b64decode(source["bytes"])
    report = botocore.validate.ParamValidator().validate(
        {"modelId": BODY["model"], **request}, shape
    )
    assert not report.has_errors(), report.generate_report()


def test_paths() -> None:
    found = backend("bedrock")
    path = "/model/anthropic.claude-x-v1%3A0/converse"
    assert found.outgoing(call(BODY)).path == path
    assert found.outgoing(call({**BODY, "stream": True})).path == path + "-stream"
    assert (found.health_probe(), found.load_probe(), found.models_probe()) == (None, None, None)


@pytest.mark.parametrize("token", ["", ":token/with+signs="])
def test_the_signature_is_amazons(token: str) -> None:
    key = Secret("AKIDEXAMPLE:wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY" + token)
    asked = call(BODY)
    outgoing = backend("bedrock", api_key=key).outgoing(asked)
    request = AWSRequest(
        "POST",
        URLS["bedrock"] + outgoing.path,
        {"content-type": "application/json"},
        outgoing.body,
    )
    credentials = BotoCredentials(*str(key).split(":"))
    now = datetime.fromtimestamp(asked.created, UTC)
    with mock.patch("botocore.auth.get_current_datetime", return_value=now.replace(tzinfo=None)):
        botocore.auth.SigV4Auth(credentials, "bedrock", "eu-west-1").add_auth(request)
    assert outgoing.headers["authorization"] == request.headers["Authorization"]
    assert outgoing.headers["x-amz-date"] == request.headers["X-Amz-Date"] == "20231114T221320Z"
    assert outgoing.headers.get("x-amz-security-token") == request.headers.get(
        "X-Amz-Security-Token"
    )


def test_an_api_key_is_a_bearer_token() -> None:
    headers = backend("bedrock", api_key=Secret("bedrock-api-key-x")).outgoing(call(BODY)).headers
    assert headers["authorization"] == "Bearer bedrock-api-key-x"


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="secret access key"):
        backend("bedrock", api_key=Secret("a:b:c:d"))
    with pytest.raises(ConfigError, match="region"):
        backend("bedrock", "https://proxy.example")
    assert backend("bedrock", "https://proxy.example", region="us-east-1")


@pytest.mark.parametrize(
    "change",
    [
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]}]},
        {"response_format": {"type": "json_object"}},
        {"n": 3},
    ],
)  # fmt: skip
def test_what_cannot_be_said_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError):
        backend("bedrock").outgoing(call({**BODY, **change}))


def test_no_tools_when_none_may_be_called() -> None:
    assert "toolConfig" not in sent(backend("bedrock"), {**BODY, "tool_choice": "none"})


USAGE_THERE = {
    "inputTokens": 10, "outputTokens": 4, "totalTokens": 34, "cacheReadInputTokens": 20, "cacheWriteInputTokens": 0,
}  # fmt: skip
USAGE = {
    "prompt_tokens": 30, "completion_tokens": 4, "total_tokens": 34,
    "prompt_tokens_details": {"cached_tokens": 20},
}  # fmt: skip


def test_a_whole_answer() -> None:
    said = {
        "output": {"message": {"role": "assistant", "content": [
            {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "s"}}},
            {"text": "Let me see."},
            {"toolUse": {"toolUseId": "t1", "name": "weather", "input": {"city": "Ulm"}}},
        ]}},
        "stopReason": "tool_use", "usage": USAGE_THERE, "metrics": {"latencyMs": 5},
    }  # fmt: skip
    told, reader = read(backend("bedrock"), call(BODY), json.dumps(said).encode())
    assert reader.is_complete
    answer = json.loads(told)
    assert answer["choices"][0]["message"] == {
        "role": "assistant", "content": "Let me see.", "reasoning_content": "Hm.", "tool_calls": [CALL],
    }  # fmt: skip
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    assert answer["usage"] == USAGE


def framed(kind: str, value: dict[str, Any]) -> bytes:
    headers = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    return frame(headers, json.dumps(value).encode())


STREAM = b"".join((
    framed("messageStart", {"role": "assistant"}),
    framed("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"reasoningContent": {"text": "Hm."}}}),
    framed("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"text": "Let mé "}}),
    framed("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"text": "see."}}),
    framed("contentBlockStop", {"contentBlockIndex": 1}),
    framed("contentBlockStart", {"contentBlockIndex": 2, "start": {"toolUse": {"toolUseId": "t1", "name": "weather"}}}),
    framed("contentBlockDelta", {"contentBlockIndex": 2, "delta": {"toolUse": {"input": '{"city":'}}}),
    framed("contentBlockDelta", {"contentBlockIndex": 2, "delta": {"toolUse": {"input": '"Ulm"}'}}}),
    framed("messageStop", {"stopReason": "tool_use"}),
))  # fmt: skip
METADATA = framed("metadata", {"usage": USAGE_THERE, "metrics": {"latencyMs": 3}})
ASKED = call({**BODY, "stream": True, "stream_options": {"include_usage": True}})


def test_a_stream_however_it_is_cut() -> None:
    events = chunks(assert_cuts_do_not_matter(backend("bedrock"), ASKED, STREAM + METADATA))
    deltas = [e["choices"][0]["delta"] for e in events if e["choices"]]
    assert "".join(d.get("content", "") for d in deltas) == "Let mé see."
    assert "".join(d.get("reasoning_content", "") for d in deltas) == "Hm."
    calls = [d["tool_calls"][0] for d in deltas if "tool_calls" in d]
    assert calls[0]["id"] == "t1"
    assert "".join(c["function"]["arguments"] for c in calls) == '{"city":"Ulm"}'
    assert events[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert events[-1]["usage"] == USAGE


def test_a_stream_without_metadata_has_no_usage() -> None:
    told, reader = read(backend("bedrock"), ASKED, STREAM)
    assert reader.is_complete
    assert reader.usage is None
    assert chunks(told)[-1]["usage"] is None


@pytest.mark.parametrize("cut", [*range(0, len(STREAM), 31), len(STREAM) + 20])
def test_a_stream_that_is_cut_off_is_not_complete(cut: int) -> None:
    told, reader = read(backend("bedrock"), ASKED, (STREAM + METADATA)[:cut])
    assert not reader.is_complete
    assert b"[DONE]" not in told


def test_an_exception_in_the_stream() -> None:
    headers = {":message-type": "exception", ":exception-type": "throttlingException"}
    told, reader = read(
        backend("bedrock"), ASKED, frame(headers, b'{"message":"Too many"}') + STREAM
    )
    assert told == b""
    assert reader.refusal is not None
    assert (reader.refusal.status, reader.refusal.is_overload) == (429, True)


@pytest.mark.parametrize(
    ("kind", "status", "ours"),
    [
        ("ThrottlingException:http://x/", 429, 429),
        ("ModelNotReadyException", 429, 503),
        ("ServiceQuotaExceededException", 400, 429),
        ("ModelErrorException", 424, 502),
        ("ValidationException", 400, 400),
        ("AccessDeniedException", 403, 403),
    ],
)
def test_errors(kind: str, status: int, ours: int) -> None:
    refusal = backend("bedrock").refusal(status, {"x-amzn-errortype": kind}, b'{"message":"No."}')
    assert refusal.status == ours
    assert json.loads(refusal.body)["error"]["message"] == "No."


def test_frames_are_amazons() -> None:
    buffer = EventStreamBuffer()
    buffer.add_data(STREAM)
    theirs = list(buffer)
    ours = FrameParser().feed(STREAM)
    assert [f.payload for f in ours] == [event.payload for event in theirs]
    assert [f.headers for f in ours] == [event.headers for event in theirs]


def test_headers_of_every_type_are_skipped_or_read() -> None:
    lines = (
        b"\x01a\x00" b"\x01b\x01" b"\x01c\x02\x01" b"\x01d\x03\x00\x01" b"\x01e\x04\x00\x00\x00\x01"
        b"\x01f\x05" + bytes(8) + b"\x01g\x06\x00\x03abc" + b"\x01h\x07\x00\x02xy" + b"\x01i\x08" + bytes(8)
        + b"\x01j\x09" + bytes(16)
    )  # fmt: skip
    assert FrameParser().feed(packed(lines)) == [Frame({"h": "xy"}, b"")]


def packed(lines: bytes) -> bytes:
    import struct
    import zlib

    prelude = struct.pack(">II", 16 + len(lines), len(lines))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + lines
    return message + struct.pack(">I", zlib.crc32(message))


@pytest.mark.parametrize(
    "lines", [b"\x05a", b"\x01a\x63", b"\x01a\x07\x00\x09x", b"\x01\xff\x07\x00\x00"]
)
def test_headers_that_cannot_be_read(lines: bytes) -> None:
    with pytest.raises(StreamError):
        FrameParser().feed(packed(lines))


@pytest.mark.parametrize("at", range(0, len(METADATA), 3))
def test_a_flipped_bit_is_found(at: int) -> None:
    broken = bytearray(METADATA)
    broken[at] ^= 4
    with pytest.raises(StreamError):
        FrameParser().feed(bytes(broken))


def test_a_request_is_signed_when_it_is_sent_and_not_when_it_came() -> None:
    """Amazon takes no signature that is older than minutes; a request may have waited for longer."""
    found = backend("bedrock", api_key=Secret("AKID:secret"))
    asked = call({"model": "m", "messages": [USER]})
    late = msgspec.structs.replace(asked, sent_at=asked.created + 3600)
    assert found.outgoing(asked).headers["x-amz-date"] == "20231114T221320Z"
    assert found.outgoing(late).headers["x-amz-date"] == "20231114T231320Z"
