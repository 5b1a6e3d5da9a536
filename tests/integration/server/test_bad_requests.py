"""Bad input is a 4xx with a sentence that names the field; nothing a client sends is a 5xx."""

import json
import socket

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.fake_server import PEER_TOKEN
from tests.support.patience import PATIENCE

MESSAGES = [{"role": "user", "content": "hi"}]
CHAT = {"messages": MESSAGES, "max_tokens": 2}
TEXT = {"prompt": "hi", "max_tokens": 2}


def error_of(response):
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return body["error"]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "pope", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
                ]
            },
            "messages[0].content[0]",
        ),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 101}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"logit_bias": {"100000": 1}}, "logit_bias.100000"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop_token_ids": [512]}, "stop_token_ids[0]"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_json": {"not": {"type": "string"}}}, "guided_json"),
        ({"guided_json": {"type": "object"}, "regex": "a"}, "regex"),
        ({"grammar": "root ::= ("}, "grammar"),
        ({"tools": [{"type": "function"}], "tool_choice": "auto"}, "tools[0].function"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": [{"name": "a b"}]}, "functions[0].name"),
        ({"length_penalty": 0.5}, "length_penalty"),
    ],
)
def test_a_wrong_chat_field_is_named(http, changes, param):
    response = http.post("/v1/chat/completions", json=CHAT | changes)
    assert response.status_code == 400
    error = error_of(response)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert param.split(".")[0].split("[")[0] in error["message"]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": [512]}, "prompt[0]"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": {"text": "a"}}, "prompt"),
        ({"echo": 3}, "echo"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 10**6}, "truncate_prompt_tokens"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1.5}, "timeout"),
        ({"timeout": "soon"}, "timeout"),
        ({"return_token_ids": "yes"}, "return_token_ids"),
        ({"cache_salt": 3}, "cache_salt"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [512]}, "allowed_token_ids[0]"),
        ({"allowed_token_ids": "all"}, "allowed_token_ids"),
        ({"bad_words": [" "]}, "bad_words[0]"),
        ({"bad_words": ["a"] * 129}, "bad_words"),
        ({"bad_words": ["a", "b" * 300]}, "bad_words[1]"),
        ({"dry_multiplier": -1}, "dry_multiplier"),
        ({"dry_multiplier": 1e3}, "dry_multiplier"),
        ({"dry_base": "big"}, "dry_base"),
        ({"dry_base": -1}, "dry_base"),
        ({"dry_allowed_length": 0}, "dry_allowed_length"),
        ({"dry_penalty_last_n": -2}, "dry_penalty_last_n"),
        ({"dry_sequence_breakers": "."}, "dry_sequence_breakers"),
        ({"dry_sequence_breakers": [""]}, "dry_sequence_breakers[0]"),
        ({"dry_sequence_breakers": ["a"] * 65}, "dry_sequence_breakers"),
        ({"dry_multiplier": 1, "use_beam_search": True}, "dry_multiplier"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3, "stream": True}, "best_of"),
        ({"best_of": 2, "n": 3}, "best_of"),
        ({"best_of": 10**6}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
    ],
)
def test_a_wrong_completion_field_is_named(http, changes, param):
    response = http.post("/v1/completions", json=TEXT | changes)
    assert (response.status_code, error_of(response)["param"]) == (400, param)


@pytest.mark.parametrize(
    "changes",
    [
        {"response_format": {"type": "text"}, "tools": [], "tool_choice": "none"},
        {"best_of": 1, "user": "someone", "store": True, "metadata": {"a": "b"}},
        {"unknown_field": 1, "parallel_tool_calls": True, "service_tier": "auto"},
        {"max_completion_tokens": 2, "top_k": -1, "min_p": 0.1, "ignore_eos": True, "priority": -3},
    ],
)
def test_what_asks_for_nothing_special_is_taken(http, changes):
    assert http.post("/v1/chat/completions", json=CHAT | changes).status_code == 200


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff", b"[" * 50_000, b'{"prompt": "\xff"}'])
def test_a_body_that_is_no_object(http, body):
    for path in ("/v1/chat/completions", "/v1/completions"):
        response = http.post(path, content=body, headers={"content-type": "application/json"})
        assert response.status_code == 400
        error_of(response)


def test_a_prompt_that_does_not_fit_carries_the_numbers(http):
    response = http.post("/v1/completions", json={"prompt": "x" * 3000})
    error = error_of(response)
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "2048" in error["message"]
    assert "3000" in error["message"]


def test_wrong_type_method_path_and_model(http):
    response = http.post("/v1/completions", content=b"x=1", headers={"content-type": "text/html"})
    assert (response.status_code, error_of(response)["code"]) == (415, "unsupported_media_type")
    response = http.get("/v1/completions")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    error_of(response)
    response = http.get("/v2/nothing")
    assert (response.status_code, error_of(response)["code"]) == (404, "not_found")
    response = http.post("/v1/completions", json=TEXT | {"model": "other"})
    assert (response.status_code, error_of(response)["code"]) == (404, "model_not_found")
    assert http.options("/v1/completions").headers["allow"] == "POST, OPTIONS"
    assert http.head("/livez").status_code == 200


def test_a_body_that_is_too_large_is_refused_whole_or_in_chunks(http):
    size = 17 * 1024 * 1024
    json_type = {"content-type": "application/json"}
    response = http.post("/v1/completions", content=b"x" * size, headers=json_type)
    assert (response.status_code, error_of(response)["code"]) == (413, "body_too_large")

    def chunks():
        for _ in range(17):
            yield b"x" * 1024 * 1024

    response = http.post("/v1/completions", content=chunks(), headers=json_type)
    assert response.status_code == 413


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\nhost: x\r\nbig: " + b"x" * 70_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", 431),
        (b"NONSENSE\r\n\r\n", 400),
    ],
)
def test_what_is_no_http_request_gets_an_error_object(server, sent, status):
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as sock:
        sock.sendall(sent)
        answer = b""
        while part := sock.recv(65536):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d" % status)
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_only_a_trusted_peer_may_continue(http):
    body = TEXT | {"prior_output_ids": [97], "seed": 3}
    assert http.post("/v1/completions", json=body).status_code == 403
    assert http.post("/v1/completions", json=TEXT | {"cache_salt": "a"}).status_code == 200
    wrong = {"x-headrace-peer": "guess"}
    assert http.post("/v1/completions", json=TEXT, headers=wrong).status_code == 403
    right = {"x-headrace-peer": PEER_TOKEN}
    assert http.post("/v1/completions", json=body, headers=right).status_code == 200


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    [
        "model",
        "messages",
        "prompt",
        "stream",
        "stream_options",
        "n",
        "max_tokens",
        "min_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logit_bias",
        "seed",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "user",
        "priority",
        "logprobs",
        "top_logprobs",
        "tools",
        "tool_choice",
        "response_format",
        "echo",
        "suffix",
        "chat_template_kwargs",
        "add_generation_prompt",
        "continue_final_message",
        "best_of",
        "cache_salt",
        "prior_output_ids",
        "max_completion_tokens",
        "include_stop_str_in_output",
        "n_predict",
        "repeat_penalty",
        "stop_regex",
        "max_new_tokens",
        "n_probs",
    ]
)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.dictionaries(FIELDS, VALUES, max_size=4), st.booleans())
def test_no_value_of_any_field_is_a_5xx(http, changes, is_chat):
    path, base = ("/v1/chat/completions", CHAT) if is_chat else ("/v1/completions", TEXT)
    body = json.dumps(base | changes)
    response = http.post(path, content=body, headers={"content-type": "application/json"})
    assert response.status_code < 500, (response.text, body)
    if response.status_code != 200:
        error_of(response)
