"""The tool loop of chat completions, against a model whose rounds are written down."""

import asyncio
import json

import pytest
from tests.support.scripted_tools import (
    Heard,
    Said,
    ScriptedModel,
    Sources,
    call,
    toolbox_of,
    usage,
)

from headrace.core.errors import (
    BadGatewayError,
    BadRequestError,
    GatewayTimeoutError,
    OverloadedError,
)
from headrace.fleet.gateway.tools.chat_loop import ChatLoop
from headrace.fleet.gateway.tools.plan import read_plan
from headrace.fleet.gateway.tools.values import Result

MINE = {"type": "function", "function": {"name": "mine", "parameters": {}}}
CALC = {"type": "gateway", "name": "calc"}


async def looped(model, *, sources=None, tools=(CALC,), config=None, **fields):
    """What a client hears, and the sources."""
    sources = sources or Sources({"calc": ("calc", "other")})
    toolbox = toolbox_of(sources, **(config or {}))
    body = {"model": "m", "messages": [{"role": "user", "content": "q"}], "tools": list(tools)}
    body |= fields
    heard = Heard()
    plan = await read_plan(toolbox, body, "m", "t")
    assert plan is not None
    await ChatLoop(toolbox, plan, body, "req", model.ask).run(heard.send)
    return heard, sources


CALLS = Said("Let me see", [call("calc", '{"a": "é"}')], usage(10, 5, 1))
ANSWER = Said("It is 4", usage=usage(20, 7, 8))


async def test_a_result_is_told_to_the_model_whose_next_answer_is_the_clients():
    model = ScriptedModel([CALLS, ANSWER])
    heard, sources = await looped(model)
    assert heard.status == 200
    assert heard.json["choices"][0]["message"]["content"] == "It is 4"
    assert heard.json["usage"] == {
        "prompt_tokens": 30,
        "completion_tokens": 12,
        "total_tokens": 42,
        "prompt_tokens_details": {"cached_tokens": 9},
    }
    assert sources.opened[0].called == [("calc", {"a": "é"})]
    assert model.asked[0]["tools"][0]["function"]["name"] == "calc"
    assert model.asked[1]["messages"] == [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "Let me see", "tool_calls": CALLS.calls},
        {"role": "tool", "tool_call_id": "c1", "content": 'calc: {"a": "\\u00e9"}'},
    ]


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 64, 1000, 0])
async def test_a_stream_is_one_answer_however_it_is_cut(piece):
    model = ScriptedModel([CALLS, ANSWER], piece)
    heard, sources = await looped(model, stream=True, stream_options={"include_usage": True})
    assert heard.text == "Let me seeIt is 4"
    assert sources.opened[0].called == [("calc", {"a": "é"})]
    assert {(event["id"], event["created"]) for event in heard.events} == {("r1", 1)}
    assert sum("role" in choice["delta"] for choice in heard.choices) == 1
    assert not any("tool_calls" in choice["delta"] for choice in heard.choices)
    reasons = [choice["finish_reason"] for choice in heard.choices if choice["finish_reason"]]
    assert reasons == ["stop"]
    assert heard.events[-1]["usage"]["total_tokens"] == 42
    assert heard.body.endswith(b"data: [DONE]\n\n")
    assert heard.body.count(b"[DONE]") == 1
    assert heard.is_ended


async def test_a_stream_tells_no_usage_that_nobody_asked_for():
    heard, _ = await looped(ScriptedModel([CALLS, ANSWER]), stream=True)
    assert not any(event.get("usage") for event in heard.events)


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_of_the_clients_own_tools_end_the_answer(stream):
    said = Said("", [call("mine", '{"x":1}', "m1"), call("mine", "{}", "m2")])
    heard, sources = await looped(ScriptedModel([said]), tools=[CALC, MINE], stream=stream)
    assert not sources.opened[0].called
    if stream:
        found = [c for choice in heard.choices for c in choice["delta"].get("tool_calls", ())]
        assert [c["index"] for c in found] == [0, 1]
        assert heard.choices[-1]["finish_reason"] == "tool_calls"
    else:
        found = heard.json["choices"][0]["message"]["tool_calls"]
    assert [(c["id"], c["function"]["arguments"]) for c in found] == [
        ("m1", '{"x":1}'),
        ("m2", "{}"),
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_of_mixed_calls_the_gateways_go_first_and_the_model_is_asked_again(stream):
    mixed = Said("", [call("mine", "{}", "m1"), call("calc", "{}", "g1")])
    model = ScriptedModel([mixed, Said("", [call("mine", "{}", "m2")])])
    heard, sources = await looped(model, tools=[CALC, MINE], stream=stream)
    assert sources.opened[0].called == [("calc", {})]
    told = model.asked[1]["messages"][1]
    assert [c["id"] for c in told["tool_calls"]] == ["g1"]
    assert b"m2" in heard.body
    assert b"m1" not in heard.body


@pytest.mark.parametrize("stream", [False, True])
async def test_the_last_round_may_call_nothing_even_where_a_model_does_not_obey(stream):
    rounds = [Said(f"{n}", [call("calc", "{}", f"c{n}")], usage(1, 1)) for n in range(3)]
    model = ScriptedModel(rounds)
    heard, sources = await looped(model, config={"max_rounds": 3}, stream=stream)
    assert [body.get("tool_choice") for body in model.asked] == [None, None, "none"]
    assert len(sources.opened[0].called) == 2
    assert heard.is_ended
    assert b"tool_calls" not in heard.body
    if stream:
        assert heard.choices[-1]["finish_reason"] == "stop"
        assert heard.text == "012"
    else:
        assert heard.json["choices"][0]["finish_reason"] == "stop"
        assert heard.json["usage"]["total_tokens"] == 6


async def test_what_had_to_be_called_has_been_after_the_first_round():
    model = ScriptedModel([CALLS, ANSWER])
    await looped(model, tool_choice="required")
    assert [body["tool_choice"] for body in model.asked] == ["required", "auto"]


async def test_further_calls_than_are_allowed_are_told_so():
    many = Said("", [call("calc", "{}", f"c{n}") for n in range(5)])
    model = ScriptedModel([many, ANSWER])
    _, sources = await looped(model, config={"max_calls": 3})
    assert len(sources.opened[0].called) == 3
    results = [m["content"] for m in model.asked[1]["messages"] if m["role"] == "tool"]
    assert results[:3] == ["calc: {}"] * 3
    assert all("No more tools" in text for text in results[3:])


async def test_few_calls_run_at_once():
    many = Said("", [call("calc", "{}", f"c{n}") for n in range(6)])
    _, sources = await looped(ScriptedModel([many, ANSWER]), config={"parallel": 2})
    assert sources.opened[0].most_running == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [("{", "not JSON"), ("[1]", "must be a JSON object"), ("[" * 5000, "not JSON")],
)
async def test_arguments_that_cannot_be_read_are_told_to_the_model(arguments, told):
    model = ScriptedModel([Said("", [call("calc", arguments)]), ANSWER])
    heard, sources = await looped(model)
    assert heard.status == 200
    assert not sources.opened[0].called
    assert told in model.asked[1]["messages"][-1]["content"]


async def test_no_arguments_are_an_empty_table():
    _, sources = await looped(ScriptedModel([Said("", [call("calc", "")]), ANSWER]))
    assert sources.opened[0].called == [("calc", {})]


async def test_a_tool_that_fails_is_told_to_the_model():
    sources = Sources({"calc": ("calc",)}, lambda *_: Result("it broke", True))
    model = ScriptedModel([CALLS, ANSWER])
    heard, _ = await looped(model, sources=sources)
    assert heard.status == 200
    assert model.asked[1]["messages"][-1]["content"] == "it broke"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_is_passed_on_with_its_status(stream):
    heard, _ = await looped(ScriptedModel([Said("too long", status=400)]), stream=stream)
    assert heard.status == 400
    assert heard.json["error"]["message"] == "too long"


async def test_a_refusal_of_a_later_round_is_an_event_of_the_stream():
    heard, _ = await looped(ScriptedModel([CALLS, Said("too long", status=400)]), stream=True)
    assert heard.status == 200
    assert heard.events[-1]["error"]["message"] == "too long"
    assert heard.body.endswith(b"data: [DONE]\n\n")


async def test_an_error_before_the_first_byte_is_the_clients():
    for stream in (False, True):
        with pytest.raises(OverloadedError):
            await looped(ScriptedModel([Said(error=OverloadedError("full"))]), stream=stream)


async def test_an_error_of_a_later_round_is_an_event_of_the_stream():
    model = ScriptedModel([CALLS, Said(error=OverloadedError("full"))])
    heard, _ = await looped(model, stream=True)
    assert heard.text == "Let me see"
    assert heard.events[-1]["error"]["message"] == "full"
    assert heard.body.endswith(b"data: [DONE]\n\n")
    assert heard.is_ended


async def test_nothing_is_called_of_a_stream_that_breaks_off():
    said = ScriptedModel([])._events(CALLS).replace(b"data: [DONE]\n\n", b"")
    broken = said + b'data: {"error":{"message":"engine died"}}\n\ndata: [DONE]\n\n'
    heard, sources = await looped(ScriptedModel([Said(raw=broken)]), stream=True)
    assert not sources.opened[0].called
    assert heard.events[-1]["error"]["message"] == "engine died"
    assert b"tool_calls" not in heard.body.replace(b'"finish_reason":"tool_calls"', b"")
    assert heard.body.count(b"[DONE]") == 1


@pytest.mark.parametrize(
    "garbage",
    [b"{", b"[]", b'{"choices":[]}', b'{"choices":[{}]}', b'{"choices":[{"message":3}]}',
     b'{"choices":[{"message":{"tool_calls":[{"function":{}}]}}]}', b"\xff"],
)  # fmt: skip
async def test_garbage_is_a_bad_gateway(garbage):
    with pytest.raises(BadGatewayError):
        await looped(ScriptedModel([Said(raw=garbage)]))


@pytest.mark.parametrize(
    "garbage",
    [
        b"{", b"[]", b'{"choices":[3]}', b"\xff", b'"x"',
        b'{"choices":[{"delta":{"tool_calls":[{"index":"a"},{"index":1}]}}]}',
        b'{"choices":[{"delta":{"tool_calls":[{"index":null},{"index":1}]}}]}',
    ],
)  # fmt: skip
async def test_garbage_in_a_stream_ends_it_with_an_error(garbage):
    heard, _ = await looped(ScriptedModel([Said(raw=b"data: " + garbage + b"\n\n")]), stream=True)
    assert "cannot be read" in heard.events[-1]["error"]["message"]
    assert heard.is_ended


@pytest.mark.parametrize("messages", [None, "text", {}])
async def test_messages_that_are_none_are_refused(messages):
    with pytest.raises(BadRequestError) as caught:
        await looped(ScriptedModel([]), messages=messages)
    assert caught.value.param == "messages"


async def test_log_probabilities_of_held_back_text_reach_the_client():
    chunk = {"id": "a", "created": 1, "choices": [
        {"index": 0, "delta": {"content": ""}, "logprobs": {"content": [7]}, "finish_reason": None}
    ]}  # fmt: skip
    raw = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()
    heard, _ = await looped(ScriptedModel([Said(raw=raw)]), stream=True)
    assert heard.choices[0]["logprobs"] == {"content": [7]}


async def test_an_answer_without_calls_is_passed_on_as_it_came():
    model = ScriptedModel([ANSWER])
    heard, _ = await looped(model)
    assert heard.json["id"] == "r1"
    assert heard.json["usage"] == ANSWER.usage


class Hanging:
    """Answers its first rounds, and then nothing."""

    def __init__(self, *rounds):
        self._model = ScriptedModel(list(rounds))
        self._left = len(rounds)

    async def ask(self, body, send):
        if not self._left:
            await asyncio.Event().wait()
        self._left -= 1
        await self._model.ask(body, send)


@pytest.mark.parametrize("rounds", [(), (CALLS,)])
async def test_all_rounds_together_take_no_longer_than_they_may(rounds):
    with pytest.raises(GatewayTimeoutError, match=r"more than 0\.05 s"):
        await looped(Hanging(*rounds), config={"timeout": 0.05})
    if rounds:  # its text was told
        heard, _ = await looped(Hanging(*rounds), config={"timeout": 0.05}, stream=True)
        assert heard.text == "Let me see"
        assert "more than 0.05 s" in heard.events[-1]["error"]["message"]
        assert heard.body.endswith(b"data: [DONE]\n\n")
    else:
        with pytest.raises(GatewayTimeoutError):
            await looped(Hanging(*rounds), config={"timeout": 0.05}, stream=True)


@pytest.mark.parametrize("stream", [False, True])
async def test_what_was_cut_off_calls_nothing(stream):
    cut = call("calc", '{"a": ')
    if stream:
        delta = {"index": 0, "delta": {"tool_calls": [{"index": 0, **cut}]}, "finish_reason": None}
        end = {"index": 0, "delta": {}, "finish_reason": "length"}
        chunks = [{"id": "a", "created": 1, "choices": [each]} for each in (delta, end)]
        raw = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    else:
        message = {"role": "assistant", "content": None, "tool_calls": [cut]}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        raw = json.dumps({"id": "a", "choices": [choice]})
    model = ScriptedModel([Said(raw=raw.encode())])
    heard, sources = await looped(model, stream=stream)
    assert len(model.asked) == 1
    assert not sources.opened[0].called
    choices = heard.choices if stream else heard.json["choices"]
    assert [each["finish_reason"] for each in choices] == ["length"]
    assert b"tool_calls" not in heard.body
