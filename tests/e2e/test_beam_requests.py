"""Beam search over HTTP: the n likeliest answers, whole and streamed."""

import json
from collections.abc import Iterator

import httpx
import pytest
from tests.support.patience import PATIENCE

PROMPT = {"prompt": [5, 60, 77, 90], "max_tokens": 6, "ignore_eos": True}


@pytest.fixture
def http(server: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server, timeout=PATIENCE) as client:
        yield client


def texts(body):
    assert [choice["index"] for choice in body["choices"]] == list(range(len(body["choices"])))
    return [choice["text"] for choice in body["choices"]]


@pytest.mark.parametrize("name", ["num_beams", "beam_width"])
def test_the_likeliest_answers_come_best_first(http, name):
    response = http.post("/v1/completions", json={**PROMPT, name: 4, "n": 3, "logprobs": 0})
    assert response.status_code == 200, response.text
    body = response.json()
    assert len(set(texts(body))) == 3
    sums = [sum(choice["logprobs"]["token_logprobs"]) for choice in body["choices"]]
    assert sums == sorted(sums, reverse=True)
    assert body["usage"]["completion_tokens"] == 18
    greedy = http.post("/v1/completions", json={**PROMPT, "temperature": 0, "logprobs": 0}).json()
    assert sums[0] >= sum(greedy["choices"][0]["logprobs"]["token_logprobs"]) - 1e-4


def test_one_beam_is_the_greedy_answer(http):
    search = http.post("/v1/completions", json={**PROMPT, "use_beam_search": True}).json()
    greedy = http.post("/v1/completions", json={**PROMPT, "temperature": 0}).json()
    assert texts(search) == texts(greedy)


def test_a_stream_says_at_the_end_what_the_whole_says(http):
    wanted = {**PROMPT, "use_beam_search": True, "n": 2}
    whole = texts(http.post("/v1/completions", json=wanted).json())
    said = ["", ""]
    with http.stream("POST", "/v1/completions", json={**wanted, "stream": True}) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    said[choice["index"]] += choice["text"]
    assert said == whole


def test_chats_have_it_too(http):
    body = {
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 5,
        "num_beams": 3,
        "n": 3,
    }
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    choices = response.json()["choices"]
    assert len(choices) == 3
    assert len({choice["message"]["content"] for choice in choices}) == 3


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"num_beams": 17}, "num_beams"),
        ({"num_beams": 2, "n": 3}, "n"),
        ({"num_beams": 2, "stop": "x"}, "stop"),
        ({"num_beams": 2, "guided_regex": "a"}, "response_format"),
        ({"num_beams": 2, "frequency_penalty": 1}, "frequency_penalty"),
        ({"early_stopping": "sometimes", "num_beams": 2}, "early_stopping"),
    ],
)
def test_what_does_not_go_with_it_is_named(http, changes, param):
    response = http.post("/v1/completions", json={**PROMPT, **changes})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
