"""What the API says has OpenAI's shapes, and the official client can read it."""

import json

import openai
import pytest
from tests.support.fake_server import FakeServer

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "seed": 1}


def sse(response):
    """The data of each event; the last is [DONE]."""
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [e for e in response.text.split("\n\n") if e]
    data = [line[6:] for e in events for line in e.split("\n") if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    assert data.count("[DONE]") == 1
    return [json.loads(d) for d in data[:-1]]


def test_a_chat_completion(http):
    response = http.post("/v1/chat/completions", json=CHAT | {"model": "fake"})
    assert response.status_code == 200
    body = response.json()
    assert body["id"].startswith("chatcmpl-")
    assert body["object"] == "chat.completion"
    assert body["model"] == "fake"
    assert body["system_fingerprint"].startswith("b1-")
    [choice] = body["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] is None
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["refusal"] is None
    assert len(choice["message"]["content"]) == 4
    # "<|im_start|>user\nhi<|im_end|><|im_start|>assistant\n" is 2 + 1 + 7 + 1 + 10 tokens.
    assert body["usage"] == {
        "prompt_tokens": 20,
        "completion_tokens": 4,
        "total_tokens": 24,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_a_chat_stream_says_what_the_whole_says(http):
    whole = http.post("/v1/chat/completions", json=CHAT | {"n": 2}).json()
    chunks = sse(http.post("/v1/chat/completions", json=CHAT | {"n": 2, "stream": True}))
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"}
    assert len({c["id"] for c in chunks}) == 1
    for index in range(2):
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert mine[0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
        text = "".join(c["delta"].get("content", "") for c in mine)
        assert text == whole["choices"][index]["message"]["content"]
        assert mine[-1]["delta"] == {}
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["length"]
    assert all("usage" not in c for c in chunks)


def test_usage_comes_last_and_is_null_before(http):
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = sse(http.post("/v1/chat/completions", json=CHAT | options))
    assert all(c["usage"] is None for c in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 4


def test_usage_on_every_chunk_grows(http):
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": "a", "max_tokens": 5, "stream": True, "stream_options": options}
    counts = [c["usage"]["completion_tokens"] for c in sse(http.post("/v1/completions", json=body))]
    assert counts == sorted(counts)
    assert counts[-1] == 5


@pytest.mark.parametrize(
    ("prompt", "num_prompts", "num_tokens"),
    [("abc", 1, 3), (["abc", "de"], 2, 5), ([97, 98], 1, 2), ([[97], [98, 99]], 2, 3)],
)
def test_completions_take_every_kind_of_prompt(http, prompt, num_prompts, num_tokens):
    body = {"prompt": prompt, "max_tokens": 3, "n": 2, "seed": 5}
    whole = http.post("/v1/completions", json=body).json()
    assert whole["object"] == "text_completion"
    assert [c["index"] for c in whole["choices"]] == list(range(2 * num_prompts))
    assert whole["usage"]["prompt_tokens"] == num_tokens
    assert whole["usage"]["completion_tokens"] == 3 * 2 * num_prompts
    chunks = sse(http.post("/v1/completions", json=body | {"stream": True}))
    for choice in whole["choices"]:
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        assert "".join(c["text"] for c in mine) == choice["text"]
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["length"]


def test_a_stop_string_ends_the_answer_and_does_not_leak(http):
    body = {"prompt": "a", "max_tokens": 200, "seed": 0}
    text = http.post("/v1/completions", json=body).json()["choices"][0]["text"]
    stop = text[20:23]
    for stream in (False, True):
        response = http.post("/v1/completions", json=body | {"stop": [stop], "stream": stream})
        choices = [c["choices"][0] for c in sse(response)] if stream else response.json()["choices"]
        assert "".join(c["text"] for c in choices) == text[: text.index(stop)]
        assert [c["finish_reason"] for c in choices][-1] == "stop"
        assert choices[-1]["stop_reason"] == stop


def test_log_probabilities(http):
    body = http.post("/v1/chat/completions", json=CHAT | {"logprobs": True, "top_logprobs": 2})
    [choice] = body.json()["choices"]
    content = choice["logprobs"]["content"]
    assert "".join(c["token"] for c in content) == choice["message"]["content"]
    assert all(len(c["top_logprobs"]) == 2 for c in content)
    body = http.post("/v1/completions", json={"prompt": "a", "max_tokens": 3, "logprobs": 1})
    [choice] = body.json()["choices"]
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2]


def test_streams_never_cut_a_character(tmp_path):
    said = "día 日本 🙂👍🏽 ok "
    with FakeServer(tmp_path, engine={"text": said}) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
        stream = client.completions.create(
            model="fake", prompt="a", max_tokens=3 * len(said.encode()), stream=True
        )
        texts = [chunk.choices[0].text for chunk in stream]
    assert "".join(texts) == said * 3
    assert "\ufffd" not in "".join(texts)


def test_the_official_client_chats_and_streams(server):
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    assert [m.id for m in client.models.list()] == ["fake"]
    assert client.models.retrieve("fake").id == "fake"
    done = client.chat.completions.create(model="fake", **CHAT)
    with client.chat.completions.create(model="fake", stream=True, **CHAT) as stream:
        text = "".join(c.choices[0].delta.content or "" for c in stream)
    assert text == done.choices[0].message.content
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="other", **CHAT)
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="fake", messages=[])
    assert caught.value.param == "messages"


def test_requests_get_the_ids_they_bring_and_others_get_new_ones(http):
    assert (
        http.get("/livez", headers={"x-request-id": "mine:1"}).headers["x-request-id"] == "mine:1"
    )
    given = http.get("/livez", headers={"x-request-id": "two words"}).headers["x-request-id"]
    assert given != "two words"
    assert given != http.get("/livez").headers["x-request-id"]
