"""`/v1/messages` over a fake engine: its shapes, its stream, its errors, its headers."""

import json

import pytest
from tests.support.in_process import InProcess

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
async def app(tmp_path):
    async with InProcess(tmp_path) as running:
        yield running


async def events(app, **fields):
    body = {"messages": HELLO, "max_tokens": 5, "stream": True, **fields}
    async with app.http.stream("POST", "/v1/messages", json=body) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        text = (await answer.aread()).decode()
    blocks = [block.split("\n") for block in text.strip().split("\n\n")]
    for name, data in blocks:
        assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"
    return [json.loads(data.removeprefix("data: ")) for _, data in blocks]


async def test_the_whole_message(app):
    body = {"messages": HELLO, "max_tokens": 5, "model": "fake"}
    answer = await app.http.post(
        "/v1/messages",
        json=body,
        headers={"x-request-id": "mine", "anthropic-version": "2023-06-01"},
    )
    assert answer.status_code == 200
    assert answer.headers["request-id"] == "mine"
    message = answer.json()
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", "fake")
    assert message["id"].startswith("msg_")
    (block,) = message["content"]
    assert block["type"] == "text"
    assert len(block["text"]) == 5
    assert (message["stop_reason"], message["stop_sequence"]) == ("max_tokens", None)
    assert message["usage"]["output_tokens"] == 5
    count = await app.http.post("/v1/messages/count_tokens", json={"messages": HELLO})
    usage = message["usage"]
    assert count.json() == {
        "input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]
    }


async def test_the_stream_says_the_same(app):
    body = {"messages": HELLO, "max_tokens": 5, "seed": 3}
    whole = (await app.http.post("/v1/messages", json=body)).json()
    made = await events(app, seed=3)
    assert [e["type"] for e in made if e["type"] != "content_block_delta"] == [
        "message_start", "ping", "content_block_start", "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    text = "".join(e["delta"]["text"] for e in made if e["type"] == "content_block_delta")
    assert text == whole["content"][0]["text"]
    assert made[-2]["delta"]["stop_reason"] == whole["stop_reason"]
    assert made[-2]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


async def test_a_stop_sequence_is_told(app):
    body = {"messages": HELLO, "max_tokens": 50, "seed": 3}
    text = (await app.http.post("/v1/messages", json=body)).json()["content"][0]["text"]
    stop = text[3:5]
    answer = await app.http.post("/v1/messages", json={**body, "stop_sequences": [stop]})
    message = answer.json()
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", stop)
    assert message["content"][0]["text"] == text[: text.index(stop)]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind"),
    [
        ("POST", "/v1/messages", {"messages": HELLO}, 400, "invalid_request_error"),
        ("POST", "/v1/messages", {"messages": HELLO, "max_tokens": 5, "model": "x"}, 404, "not_found_error"),
        ("POST", "/v1/messages", {"messages": HELLO, "max_tokens": 5, "n": 2}, 400, "invalid_request_error"),
        ("GET", "/v1/messages", None, 405, "invalid_request_error"),
        ("GET", "/v1/messages/nothing", None, 404, "not_found_error"),
        ("POST", "/v1/messages/count_tokens", {"messages": 3}, 400, "invalid_request_error"),
    ],
)  # fmt: skip
async def test_errors_are_anthropics(app, method, path, body, status, kind):
    answer = await app.http.request(method, path, json=body, headers={"x-request-id": "mine"})
    assert answer.status_code == status
    problem = answer.json()
    assert problem["type"] == "error"
    assert problem["error"]["type"] == kind
    assert problem["error"]["message"]
    assert problem["request_id"] == "mine"


async def test_a_wrong_key_is_told_in_anthropics_words(tmp_path):
    async with InProcess(tmp_path, security={"api_keys": "secret-key"}) as app:
        body = {"messages": HELLO, "max_tokens": 5}
        wrong = await app.http.post("/v1/messages", json=body, headers={"x-api-key": "no"})
        assert (wrong.status_code, wrong.json()["error"]["type"]) == (401, "authentication_error")
        right = await app.http.post("/v1/messages", json=body, headers={"x-api-key": "secret-key"})
        assert right.status_code == 200


async def test_other_paths_keep_openais_errors(app):
    answer = await app.http.post("/v1/messagesx", json={})
    assert answer.json()["error"]["code"] == "not_found"
