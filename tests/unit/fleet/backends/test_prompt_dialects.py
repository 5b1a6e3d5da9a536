"""TGI's own route and Triton's generate: a prompt in, a text out."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.wire_answers import (
    assert_cuts_do_not_matter,
    backend,
    call,
    chunks,
    read,
    sent,
    sse,
)

from headrace.core.errors import BadRequestError
from headrace.fleet.backends.prompts import StopFinder
from headrace.fleet.backends.values import CHAT, COMPLETIONS, ModelCard


def tgi() -> Any:
    return backend("tgi", api="native")


def test_tgi_request() -> None:
    body = {
        "model": "m", "prompt": "Once", "max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 3,
        "stop": "END", "repetition_penalty": 1.1, "frequency_penalty": 0.1, "stream": True, "n": 1,
    }  # fmt: skip
    assert sent(tgi(), body, COMPLETIONS) == {"inputs": "Once", "parameters": {
        "max_new_tokens": 9, "details": True, "return_full_text": False, "do_sample": True, "temperature": 0.5,
        "top_p": 0.9, "top_k": 5, "seed": 3, "stop": ["END"], "repetition_penalty": 1.1, "frequency_penalty": 0.1,
    }}  # fmt: skip
    edges = {"prompt": ["Once"], "temperature": 0, "top_p": 1, "top_k": -1}
    assert sent(tgi(), edges, COMPLETIONS)["parameters"] == {
        "max_new_tokens": 16, "details": True, "return_full_text": False, "do_sample": False,
    }  # fmt: skip


def test_tgi_routes() -> None:
    asked = call({"prompt": "x"}, COMPLETIONS)
    assert tgi().outgoing(asked).path == "/generate_stream"
    assert tgi().outgoing(call({"messages": []}, CHAT)).path == CHAT
    assert tgi().reader(call({"messages": []}, CHAT), {}) is None
    plain = backend("tgi")
    assert (plain.outgoing(asked).path, plain.reader(asked, {})) == (COMPLETIONS, None)


def token(text: str, *, special: bool = False, **more: Any) -> dict[str, Any]:
    said = {"id": 5, "text": text, "logprob": -0.1, "special": special}
    return {"index": 1, "token": said, "generated_text": None, "details": None, **more}


TGI = sse(
    token(" upon"),
    token(" a tïme E"),
    token("N"),
    token("x"),
    token("</s>", special=True, generated_text="…",
          details={"finish_reason": "eos_token", "generated_tokens": 5, "seed": None, "input_length": 2}),
)  # fmt: skip
USAGE = {
    "prompt_tokens": 2,
    "completion_tokens": 5,
    "total_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 0},
}


def test_tgi_stream_however_it_is_cut() -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    asked = call({"model": "m", "prompt": "Once", "stop": ["END"], **options}, COMPLETIONS)
    events = chunks(assert_cuts_do_not_matter(tgi(), asked, TGI))
    assert {(e["object"], e["id"]) for e in events} == {("text_completion", "cmpl-r1")}
    assert "".join(e["choices"][0]["text"] for e in events[:-1]) == " upon a tïme ENx"
    assert events[-2]["choices"][0]["finish_reason"] == "stop"
    assert events[-1]["usage"] == USAGE


def test_tgi_whole() -> None:
    told, reader = read(tgi(), call({"model": "m", "prompt": "Once"}, COMPLETIONS), TGI)
    assert reader.content_type == "application/json"
    answer = json.loads(told)
    choice = {"index": 0, "text": " upon a tïme ENx", "logprobs": None, "finish_reason": "stop"}
    assert (answer["choices"], answer["usage"]) == ([choice], USAGE)


@pytest.mark.parametrize("behind", [{"error": "broken"}, {"text_output": 5}, []])
@pytest.mark.parametrize("step", [0, 1])
def test_what_stands_behind_a_stop_string_of_triton_is_not_read(behind: Any, step: int) -> None:
    asked = call({"model": "m", "prompt": "x", "stop": "END", "stream": True}, COMPLETIONS)
    stream = sse({"text_output": "one EN"}, {"text_output": "D two"}, behind)
    told, reader = read(backend("triton"), asked, stream, step=step)
    assert (reader.refusal, reader.is_complete) == (None, True)
    events = chunks(told)
    assert "".join(each["choices"][0]["text"] for each in events) == "one "
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


def test_tgi_stop_strings_are_cut() -> None:
    details = {"finish_reason": "stop_sequence", "generated_tokens": 3, "input_length": 2}
    stream = sse(token("a E"), token("ND", details=details, generated_text="a END"))
    told, _ = read(tgi(), call({"prompt": "x", "stop": "END"}, COMPLETIONS), stream)
    assert json.loads(told)["choices"][0]["text"] == "a "


@pytest.mark.parametrize(
    ("kind", "status"),
    [("overloaded", 429), ("validation", 400), ("generation", 502), ("new", 500)],
)
def test_tgi_errors(kind: str, status: int) -> None:
    error = {"error": "No.", "error_type": kind}
    told, reader = read(tgi(), call({"prompt": "x", "stream": True}, COMPLETIONS), sse(error) + TGI)
    assert told == b""
    assert reader.refusal is not None
    assert reader.refusal.status == status
    refusal = tgi().refusal(429, {}, json.dumps(error).encode())
    assert json.loads(refusal.body)["error"]["message"] == "No."


@pytest.mark.parametrize("cut", range(0, len(TGI) - 1, 11))
def test_tgi_cut_off(cut: int) -> None:
    told, reader = read(tgi(), call({"prompt": "x", "stream": True}, COMPLETIONS), TGI[:cut])
    assert not reader.is_complete
    assert b"[DONE]" not in told


def test_triton_request() -> None:
    body = {
        "model": "my model",
        "prompt": "Once",
        "max_tokens": 9,
        "temperature": 0,
        "top_k": 5,
        "seed": 3,
        "stop": "E",
    }
    found = backend("triton")
    assert sent(found, body, COMPLETIONS) == {
        "text_input": "Once", "max_tokens": 9, "stream": False, "exclude_input_in_output": True,
        "temperature": 0, "top_k": 5, "random_seed": 3, "seed": 3,
    }  # fmt: skip
    assert found.outgoing(call(body, COMPLETIONS)).path == "/v2/models/my%20model/generate"
    stream = call({**body, "stream": True}, COMPLETIONS)
    assert found.outgoing(stream).path == "/v2/models/my%20model/generate_stream"


def test_triton_probes() -> None:
    found = backend("triton")
    health, models = found.health_probe(), found.models_probe()
    assert health is not None
    assert health.path == "/v2/health/ready"
    assert found.load_probe() is None
    assert models is not None
    assert (models.method, models.path, models.body) == ("POST", "/v2/repository/index", b"{}")
    index = [
        {"name": "a", "version": "1", "state": "READY"},
        {"name": "a", "version": "2", "state": "READY"},
        {"name": "b", "version": "1", "state": "UNAVAILABLE"},
        {"name": "c"},
    ]
    assert found.read_models(200, json.dumps(index).encode()) == (
        ModelCard(id="a"),
        ModelCard(id="c"),
    )


def output(text: Any) -> dict[str, Any]:
    return {"model_name": "m", "model_version": "1", "text_output": text}


TRITON = sse(output(" upon"), output(" a tïme"), output(["!"]), output(""))


def test_triton_stream_however_it_is_cut() -> None:
    asked = call({"model": "m", "prompt": "Once", "stream": True}, COMPLETIONS)
    events = chunks(assert_cuts_do_not_matter(backend("triton"), asked, TRITON))
    assert "".join(e["choices"][0]["text"] for e in events) == " upon a tïme!"
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


def test_triton_whole_with_our_stop() -> None:
    asked = call({"model": "m", "prompt": "Once", "stop": [" a", "!"]}, COMPLETIONS)
    told, reader = read(backend("triton"), asked, json.dumps(output(" upon a time!")).encode())
    answer = json.loads(told)
    assert answer["choices"][0]["text"] == " upon"
    assert "usage" not in answer
    assert (reader.is_complete, reader.usage) == (True, None)


def test_triton_errors() -> None:
    found = backend("triton")
    refusal = found.refusal(400, {}, b'{"error":"unknown model"}')
    assert json.loads(refusal.body)["error"]["message"] == "unknown model"
    asked = call({"model": "m", "prompt": "x", "stream": True}, COMPLETIONS)
    told, reader = read(found, asked, TRITON + sse({"error": "out of memory"}))
    assert b"upon" in told
    assert reader.refusal is not None
    assert not reader.is_complete
    assert b"[DONE]" not in told
    assert not read(found, asked, b"")[1].is_complete


@pytest.mark.parametrize("dialect", ["tgi", "triton"])
@pytest.mark.parametrize(
    "change",
    [{"prompt": [1, 2]}, {"prompt": ["a", "b"]}, {"prompt": None}, {"n": 2}, {"echo": True}, {"logprobs": 1},
     {"max_tokens": 0}, {"suffix": "x"}, {"temperature": "x"}],
)  # fmt: skip
def test_prompts_that_cannot_be_said(dialect: str, change: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError):
        backend(dialect, api="native").outgoing(
            call({"model": "m", "prompt": "x", **change}, COMPLETIONS)
        )


def test_triton_has_no_chat_template() -> None:
    with pytest.raises(BadRequestError, match="/v1/completions"):
        backend("triton").outgoing(call({"model": "m", "messages": []}, CHAT))


@given(
    st.text("abE", max_size=30),
    st.lists(st.text("abE", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 30), max_size=6),
)
def test_stops_are_found_however_the_text_comes(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    finder = StopFinder(tuple(stops))
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    told = "".join(finder.feed(text[a:b]) for a, b in pairwise(edges))
    told += finder.rest()
    found = [at for stop in stops if (at := text.find(stop)) >= 0]
    # Of stops that overlap, one that is complete earlier may end the text before one that began earlier.
    assert text.startswith(told)
    if not found:
        assert told == text
    else:
        assert finder.has_stopped
        assert not any(stop in told for stop in stops)


@pytest.mark.parametrize("behind", [b"", b"data: {", b'data: {"text_output": "more"}\n\n'])
def test_triton_is_not_listened_to_behind_a_stop_string(behind):
    """It does not know of it, and would go on to its bound; half an event may have come already."""
    asked = call({"model": "m", "prompt": "x", "stop": "END", "stream": True}, COMPLETIONS)
    reader = backend("triton").reader(asked, {})
    assert reader is not None
    told = reader.feed(sse(output("one E")))
    assert not reader.is_cut
    told += reader.feed(sse(output("ND two")) + behind)
    assert reader.is_cut
    told += reader.finish()
    assert reader.is_complete
    said = chunks(told)
    assert "".join(chunk["choices"][0]["text"] for chunk in said) == "one "
    assert said[-1]["choices"][0]["finish_reason"] == "stop"
