"""What completions tell of their prompts: echo, log-probabilities, token ids, and the best of several."""

import json

import pytest

# The double's tokens are bytes, and two special ones; its answers depend on prompt and seed alone.
PROMPT = [104, 101, 108, 108, 111]
BASE = {"prompt": PROMPT, "max_tokens": 4, "seed": 3}


def complete(http, **changes):
    response = http.post("/v1/completions", json=BASE | changes)
    assert response.status_code == 200, response.text
    return response.json()


def streamed(http, path, body):
    response = http.post(path, json=body | {"stream": True})
    assert response.status_code == 200, response.text
    lines = [line[6:] for line in response.text.split("\n") if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("max_tokens", [0, 1, 4])
def test_what_lm_eval_reads_of_a_batch_of_token_ids(http, max_tokens):
    prompts = [PROMPT, PROMPT[:2], [*PROMPT, *PROMPT]]
    body = complete(http, prompt=prompts, max_tokens=max_tokens, logprobs=1, echo=True)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    for choice, prompt in zip(body["choices"], prompts, strict=True):
        logprobs = choice["logprobs"]
        count = len(prompt) + max_tokens
        assert {len(part) for part in logprobs.values()} == {count}
        assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
        for logprob, best in zip(
            logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:], strict=True
        ):
            assert logprob <= max(best.values())
        assert logprobs["tokens"][: len(prompt)] == [chr(byte) for byte in prompt]
    assert body["usage"]["completion_tokens"] == 3 * max_tokens
    assert body["usage"]["prompt_tokens"] == sum(map(len, prompts))


def test_echo_puts_the_prompt_before_each_answer(http):
    plain = complete(http, n=2)
    echoed = complete(http, n=2, echo=True)
    for before, after in zip(plain["choices"], echoed["choices"], strict=True):
        assert after["text"] == "hello" + before["text"]
        assert after["logprobs"] is None
    text = complete(http, prompt="hello", echo=True)["choices"][0]["text"]
    assert text.startswith("hello")


def test_offsets_count_from_the_beginning_of_the_text(http):
    [choice] = complete(http, echo=True, logprobs=0)["choices"]
    offsets = choice["logprobs"]["text_offset"]
    assert offsets[:6] == [0, 1, 2, 3, 4, 5]
    assert offsets == sorted(offsets)


def test_a_stream_echoes_what_the_whole_does(http):
    wanted = {"n": 2, "echo": True, "logprobs": 2, "return_token_ids": True}
    whole = complete(http, **wanted)["choices"]
    chunks = streamed(http, "/v1/completions", BASE | wanted)
    for choice in whole:
        parts = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert [i for part in parts for i in part["token_ids"]] == choice["token_ids"]
        assert [part.get("prompt_token_ids") for part in parts if "prompt_token_ids" in part] == [
            PROMPT
        ]
        for name, values in choice["logprobs"].items():
            found = [v for part in parts if part["logprobs"] for v in part["logprobs"][name]]
            assert found == values


def test_a_chat_stream_gives_the_ids_and_log_probabilities_of_the_whole(http):
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 6,
        "seed": 1,
        "n": 2,
        "logprobs": True,
        "top_logprobs": 3,
        "return_token_ids": True,
    }
    whole = http.post("/v1/chat/completions", json=body).json()
    chunks = streamed(http, "/v1/chat/completions", body)
    told = [chunk["prompt_token_ids"] for chunk in chunks if "prompt_token_ids" in chunk]
    assert told == [whole["prompt_token_ids"]] * 2
    for choice in whole["choices"]:
        parts = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert [i for p in parts for i in p.get("token_ids", ())] == choice["token_ids"]
        assert len(choice["token_ids"]) == 6
        content = [e for p in parts if p["logprobs"] for e in p["logprobs"]["content"]]
        assert content == choice["logprobs"]["content"]


def test_prompt_logprobs_are_told_by_token_id(http):
    [choice] = complete(http, prompt_logprobs=2)["choices"]
    told = choice["prompt_logprobs"]
    assert told[0] is None
    assert len(told) == len(PROMPT)
    for token_id, entry in zip(PROMPT[1:], told[1:], strict=True):
        assert set(entry[str(token_id)]) == {"logprob", "rank", "decoded_token"}
        assert 2 <= len(entry) <= 3
    assert choice["logprobs"] is None
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "prompt_logprobs": 0}
    body = http.post("/v1/chat/completions", json=chat).json()
    assert len(body["prompt_logprobs"]) == body["usage"]["prompt_tokens"]
    assert "prompt_logprobs" not in body["choices"][0]


def test_each_list_has_as_many_alternatives_as_it_asked_for(http):
    [choice] = complete(http, echo=True, logprobs=1, prompt_logprobs=4)["choices"]
    assert all(len(best) <= 2 for best in choice["logprobs"]["top_logprobs"][1:])
    assert all(len(entry) >= 4 for entry in choice["prompt_logprobs"][1:])


def test_the_best_of_several_have_no_log_probabilities_unless_they_were_asked_for(http):
    body = complete(http, n=2, best_of=5)
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert all(choice["logprobs"] is None for choice in body["choices"])
    assert body["usage"]["completion_tokens"] == 5 * 4
    body = complete(http, best_of=3, logprobs=1)
    assert len(body["choices"]) == 1
    assert len(body["choices"][0]["logprobs"]["tokens"]) == 4


def test_a_prompt_is_cut_to_its_last_tokens(http):
    [choice] = complete(http, truncate_prompt_tokens=2, return_token_ids=True)["choices"]
    assert choice["prompt_token_ids"] == PROMPT[-2:]
    long = [97] * 100_000
    body = complete(http, prompt=long, truncate_prompt_tokens=-1, return_token_ids=True)
    assert 0 < len(body["choices"][0]["prompt_token_ids"]) < 100_000
