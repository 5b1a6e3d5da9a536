"""`/completion` in llama.cpp's words."""

import json

import pytest
from tests.support.in_process import InProcess
from tests.support.tiny_models import make_tiny_llama

from headrace.api.llama import LlamaRequest
from headrace.preprocess.tokenizer import load_tokenizer
from headrace.server.dialects.llama_request import to_completion

BODY = {"prompt": "Hi there", "n_predict": 6, "seed": 3}


@pytest.fixture
async def app(tmp_path):
    async with InProcess(tmp_path) as running:
        yield running


async def ask(app, **fields):
    answer = await app.http.post("/completion", json={**BODY, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def events(app, **fields):
    answer = await app.http.post("/completion", json={**BODY, **fields, "stream": True})
    assert answer.status_code == 200
    lines = [line for line in answer.text.split("\n") if line]
    assert all(line.startswith("data: {") for line in lines)
    return [json.loads(line[6:]) for line in lines]


async def test_the_answer_is_that_of_completions(app):
    body = {"prompt": "Hi there", "max_tokens": 6, "seed": 3}
    other = (await app.http.post("/v1/completions", json=body)).json()
    found = await ask(app)
    assert found["content"] == other["choices"][0]["text"]
    assert (found["stop"], found["tokens"], found["truncated"]) == (True, [], False)
    assert found["tokens_predicted"] == other["usage"]["completion_tokens"]
    assert found["tokens_evaluated"] == other["usage"]["prompt_tokens"]
    assert found["generation_settings"]["n_predict"] == 6
    assert found["generation_settings"]["seed"] == 3
    assert found["stop_type"] in {"limit", "eos"}
    assert "completion_probabilities" not in found
    assert len((await ask(app, return_tokens=True))["tokens"]) == found["tokens_predicted"]


async def test_a_stream_says_the_same_and_ends_without_a_marker(app):
    whole = await ask(app, return_tokens=True, n_probs=2)
    *parts, last = await events(app, n_probs=2)
    assert [part["stop"] for part in parts] == [False] * len(parts)
    assert "".join(part["content"] for part in parts) == whole["content"]
    assert [token for part in parts for token in part["tokens"]] == whole["tokens"]
    told = [entry for part in parts for entry in part["completion_probabilities"]]
    assert told == whole["completion_probabilities"]
    assert last["stop"] is True
    assert last["content"] == ""
    for field in ("tokens_predicted", "tokens_evaluated", "stop_type", "prompt", "has_new_line"):
        assert last[field] == whole[field]


async def test_prompts_of_all_kinds(app):
    ids = (await app.http.post("/tokenize", json={"content": "Hi there"})).json()["tokens"]
    one = await ask(app)
    assert (await ask(app, prompt={"prompt_string": "Hi there"}))["content"] == one["content"]
    assert isinstance((await ask(app, prompt=[*ids, "more", 5]))["content"], str)
    both = await ask(app, prompt=["Hi there", {"prompt_string": "Hi there"}])
    assert [answer["content"] for answer in both] == [one["content"]] * 2
    assert len(await ask(app, prompt=["Hi there"])) == 1


async def test_only_the_fields_that_were_asked_for(app):
    fields = ["content", "generation_settings/n_predict", "nothing/here"]
    found = await ask(app, response_fields=fields)
    assert set(found) == {"content", "generation_settings/n_predict"}


def test_biases_by_id_by_text_and_as_an_object(tmp_path):
    tokenizer = load_tokenizer(make_tiny_llama(tmp_path / "tiny"), cache=None)
    word = tokenizer.encode("Hi", add_special=False)
    for given, wanted in (
        ([[7, False], [9, 2]], {"7": -100.0, "9": 2.0}),
        ({"7": 1.5, "Hi": -1}, {"7": 1.5} | {str(one): -1.0 for one in word}),
        ([["Hi", 0.5]], {str(one): 0.5 for one in word}),
        ([], None),
        (None, None),
    ):
        request = LlamaRequest(prompt="x", logit_bias=given)
        assert to_completion(request, tokenizer).logit_bias == wanted


async def test_a_stopping_word_is_told(app):
    text = (await ask(app, n_predict=40))["content"]
    word = text[3:5]
    found = await ask(app, n_predict=40, stop=[word])
    assert (found["stop_type"], found["stopping_word"]) == ("word", word)
    assert found["content"] == text[: text.index(word)]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"n_predict": 0}, "n_predict"),
        ({"n_predict": "x"}, "n_predict"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": [1, None]}, "prompt[1]"),
        ({"prompt": [["a", {}]]}, "prompt[0][1]"),
        ({"prompt": [10**9]}, "prompt[0]"),
        ({"prompt": {"prompt_string": 5}}, "prompt.prompt_string"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["x"]}}, "prompt.multimodal_data"),
        ({"logit_bias": 5}, "logit_bias"),
        ({"logit_bias": [[1]]}, "logit_bias[0]"),
        ({"logit_bias": [[None, 1]]}, "logit_bias[0][0]"),
        ({"logit_bias": [[1, True]]}, "logit_bias[0][1]"),
        ({"logit_bias": [[1, 1e300]]}, "logit_bias[0][1]"),
        ({"logit_bias": [[n, 1] for n in range(2000)]}, "logit_bias"),
        ({"post_sampling_probs": True}, "post_sampling_probs"),
        ({"response_fields": ["a"] * 100}, "response_fields"),
    ],
)
async def test_faults_are_named_in_llama_cpps_words(app, change, param):
    answer = await app.http.post("/completion", json={**BODY, **change})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(param)


async def test_the_only_model_answers_to_any_name_where_the_operator_says_so(tmp_path, app):
    assert (await app.http.post("/completion", json={**BODY, "model": "x"})).status_code == 404
    async with InProcess(tmp_path, accept_any_model=True) as open_app:
        assert (await ask(open_app, model="gpt-4"))["model"] == "gpt-4"
