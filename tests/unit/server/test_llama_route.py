"""`/completion` in llama.cpp's words."""

import asyncio
import json

import pytest
from tests.support.in_process import InProcess
from tests.support.tiny_models import make_tiny_llama
from tests.support.tiny_tokenizers import byte_level_tokenizer

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
        ({"post_sampling_probs": "yes"}, "post_sampling_probs"),
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


async def test_timings_tell_what_the_answer_cost(app):
    found = await ask(app)
    timings = found["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == found["tokens_evaluated"]
    assert timings["predicted_n"] == found["tokens_predicted"]
    assert all(value >= 0 for value in timings.values())
    one = (await ask(app, n_predict=1))["timings"]
    assert (one["predicted_n"], one["predicted_ms"], one["predicted_per_second"]) == (1, 0, 0)
    assert one["cache_n"] + one["prompt_n"] == found["tokens_evaluated"]


async def test_progress_comes_before_the_first_token(app):
    prompt = [number % 200 + 3 for number in range(150)]
    *parts, last = await events(app, prompt=prompt, return_progress=True, timings_per_token=True)
    told = [part["prompt_progress"] for part in parts if "prompt_progress" in part]
    assert parts[: len(told)] == [part for part in parts if "prompt_progress" in part]
    assert [p["total"] for p in told] == [150] * len(told)
    assert [p["processed"] for p in told] == [
        0,
        150,
    ]  # the fake engine computes all of it in one step
    assert {p["cache"] for p in told} == {0}
    timings = [part["timings"] for part in parts]
    assert (timings[0]["prompt_n"], timings[0]["prompt_ms"]) == (0, 0)
    counts = [entry["predicted_n"] for entry in timings]
    assert counts == sorted(counts)
    assert last["timings"]["predicted_n"] == last["tokens_predicted"] == counts[-1]


async def test_probabilities_after_sampling(app):
    found = await ask(app, n_probs=3, top_k=2, post_sampling_probs=True)
    for position in found["completion_probabilities"]:
        assert 0 < position["prob"] <= 1
        assert all(0 < entry["prob"] <= 1 for entry in position["top_probs"])
        assert not {"logprob", "top_logprobs"} & position.keys()


async def test_slots_show_who_runs(app):
    def shown(slots):
        return [(slot["is_processing"], slot["next_token"][0]["n_remain"]) for slot in slots]

    idle = (await app.http.get("/slots")).json()
    assert set(shown(idle)) == {(False, -1)}
    task = asyncio.create_task(app.http.post("/completion", json={**BODY, "n_predict": 100}))
    busy = idle
    while not task.done() and not busy[0]["is_processing"]:
        await asyncio.sleep(0)
        busy = (await app.http.get("/slots")).json()
    assert (busy[0]["is_processing"], busy[1]["is_processing"]) == (True, False)
    assert busy[0]["next_token"][0]["n_remain"] + busy[0]["next_token"][0]["n_decoded"] == 100
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert set(shown((await app.http.get("/slots")).json())) == {(False, -1)}


async def test_llama_cpps_names_of_metrics(app):
    await ask(app)
    answer = await app.http.get("/metrics/llama.cpp")
    assert "process-start-time-unix" in answer.headers
    lines = answer.text.splitlines()
    values = dict(line.split() for line in lines if not line.startswith("#"))
    assert float(values["llamacpp:n_tokens_max"]) > 0
    assert len(lines) == 3 * len(values)


async def test_chat_tells_the_same_where_it_is_asked_in_llama_cpps_words(app):
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
    plain = (await app.http.post("/v1/chat/completions", json=body)).json()
    assert not {"timings", "__verbose", "prompt_progress"} & plain.keys()
    wish = {"timings_per_token": True, "verbose": True, "return_progress": True}
    found = (await app.http.post("/v1/chat/completions", json=body | wish)).json()
    assert found["timings"]["predicted_n"] == found["usage"]["completion_tokens"]
    assert "Hi" in found["__verbose"]["prompt"]
    wish |= {"stream": True, "stream_options": {"include_usage": True}}
    streamed = (await app.http.post("/v1/chat/completions", json=body | wish)).text
    told = [json.loads(line[6:]) for line in streamed.split("\n") if line.startswith("data: {")]
    *progress, opening = [chunk for chunk in told if "prompt_progress" in chunk] + [
        next(chunk for chunk in told if "prompt_progress" not in chunk)
    ]
    assert next(chunk["prompt_progress"]["processed"] for chunk in progress) == 0
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": None, "refusal": None}
    assert "timings" not in opening
    last = told[-1]
    assert (last["choices"], last["timings"]) == ([], told[-2]["timings"])
    other = {"prompt": "Hi", "max_tokens": 5, "stream": True, "timings_per_token": True}
    streamed = (await app.http.post("/v1/completions", json=other)).text
    assert streamed.count('"timings"') == streamed.count("data: {")


async def test_responses_tell_the_same(app):
    body = {"input": "Hi", "max_output_tokens": 5, "stream": True}
    wish = {"timings_per_token": True, "return_progress": True}
    streamed = (await app.http.post("/responses", json=body | wish)).text
    told = [json.loads(line[6:]) for line in streamed.split("\n") if line.startswith("data: {")]
    assert [event["sequence_number"] for event in told] == [*range(len(told))]
    assert told[0]["type"] == "response.created"
    progress = [event for event in told if "prompt_progress" in event]
    assert {event["type"] for event in progress} == {"response.in_progress"}
    timed = {event["type"] for event in told if "timings" in event}
    assert "response.output_text.delta" in timed
    assert "timings" in told[-1]


def test_llama_cpps_own_defaults_fill_what_is_not_said():
    asked = to_completion(
        LlamaRequest(prompt="a", top_k=7), byte_level_tokenizer(), has_own_defaults=True
    )
    assert (asked.temperature, asked.top_k, asked.top_p, asked.min_p) == (0.8, 7, 0.95, 0.05)
    asked = to_completion(LlamaRequest(prompt="a"), byte_level_tokenizer())
    assert (asked.temperature, asked.top_k) == (None, None)
