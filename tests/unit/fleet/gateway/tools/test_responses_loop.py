"""The tool loop of /v1/responses, against a model whose rounds are written down."""

import pytest
from tests.support.response_rounds import MCP, MINE, Model, looped, response, text, wants
from tests.support.scripted_tools import Sources

from headrace.core.errors import BadGatewayError, BadRequestError
from headrace.fleet.gateway.tools.values import Result


async def test_calls_are_shown_and_their_results_told_to_the_model():
    call = wants("calc__add", '{"a":1}')
    model = Model(response(call), response(text("It is 4"), tokens=20))
    heard, sources = await looped(model)
    assert sources.opened[0].called == [("add", {"a": 1})]
    shown, said = heard.json["output"]
    assert shown == {
        "type": "mcp_call",
        "id": "mcp_c1",
        "server_label": "calc",
        "name": "add",
        "arguments": '{"a":1}',
        "output": 'add: {"a": 1}',
        "error": None,
    }
    assert said["content"][0]["text"] == "It is 4"
    assert heard.json["usage"] == {
        "input_tokens": 30,
        "output_tokens": 4,
        "total_tokens": 34,
        "input_tokens_details": {"cached_tokens": 2},
    }
    assert model.asked[0]["tools"] == [
        {"type": "function", "name": "calc__add", "description": "Does add", "parameters": {"type": "object"}}
    ]  # fmt: skip
    assert model.asked[1]["input"] == [
        {"role": "user", "content": "q"},
        call,
        {"type": "function_call_output", "call_id": "c1", "output": 'add: {"a": 1}'},
    ]


async def test_a_tool_that_fails_is_shown_as_an_error():
    sources = Sources({"calc": ("add",)}, lambda *_: Result("it broke", True))
    model = Model(response(wants("calc__add")), response(text("sorry")))
    heard, _ = await looped(model, sources=sources)
    shown = heard.json["output"][0]
    assert (shown["output"], shown["error"]) == (None, "it broke")


async def test_what_was_shown_may_be_sent_back():
    model = Model(response(wants("calc__add")), response(text("first")))
    heard, _ = await looped(model)
    again = Model(response(text("second")))
    question = {"role": "user", "content": "more"}
    await looped(again, input=[{"role": "user", "content": "q"}, *heard.json["output"], question])
    kinds = [item.get("type") for item in again.asked[0]["input"]]
    assert kinds == [None, "function_call", "function_call_output", "message", None]
    call, result = again.asked[0]["input"][1:3]
    assert (call["name"], call["call_id"], result["call_id"]) == ("calc__add", "c1", "c1")
    assert result["output"] == "add: {}"


async def test_of_mixed_calls_the_gateways_go_first():
    model = Model(
        response(wants("mine", call_id="a"), wants("calc__add", call_id="b")),
        response(wants("mine", call_id="c")),
    )
    heard, _ = await looped(model, tools=[MCP, MINE])
    assert [item.get("call_id") for item in model.asked[1]["input"][1:]] == ["b", "b"]
    assert [(item["type"], item["name"]) for item in heard.json["output"]] == [
        ("mcp_call", "add"),
        ("function_call", "mine"),
    ]


async def test_the_last_round_may_call_nothing_even_where_a_model_does_not_obey():
    rounds = [response(text(str(n)), wants("calc__add", call_id=f"c{n}")) for n in range(3)]
    model = Model(*rounds)
    heard, sources = await looped(model, config={"max_rounds": 3})
    assert [body.get("tool_choice") for body in model.asked] == [None, None, "none"]
    assert len(sources.opened[0].called) == 2
    assert [item["type"] for item in heard.json["output"]] == ["mcp_call", "mcp_call", "message"]


async def test_further_calls_than_are_allowed_are_told_so():
    many = [wants("calc__add", call_id=f"c{n}") for n in range(4)]
    heard, sources = await looped(
        Model(response(*many), response(text("x"))), config={"max_calls": 1}
    )
    assert len(sources.opened[0].called) == 1
    assert [bool(item.get("error")) for item in heard.json["output"]] == [
        False,
        True,
        True,
        True,
        False,
    ]


async def test_a_stream_is_what_a_whole_answer_would_have_been():
    model = Model(
        response(wants("calc__add", '{"a":1}')),
        response({"type": "reasoning", "id": "r1", "summary": []}, text("It is"), wants("mine")),
    )
    heard, _ = await looped(model, tools=[MCP, MINE], stream=True)
    assert not any(body["stream"] for body in model.asked)
    events = heard.events
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:2] == ["created", "in_progress"]
    assert kinds[-1] == "completed"
    assert kinds.count("output_item.added") == kinds.count("output_item.done") == 4
    assert [kind for kind in kinds if "call" in kind] == [
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
        "mcp_call.completed",
        "function_call_arguments.delta",
        "function_call_arguments.done",
    ]
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert deltas == ["It is"]
    assert [item["type"] for item in events[-1]["response"]["output"]] == [
        "mcp_call",
        "reasoning",
        "message",
        "function_call",
    ]
    assert all(f"event: {event['type']}\n".encode() in heard.body for event in events)
    assert heard.is_ended


async def test_an_incomplete_answer_ends_its_stream_as_such():
    heard, _ = await looped(Model({**response(text("x")), "status": "incomplete"}), stream=True)
    assert heard.events[-1]["type"] == "response.incomplete"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_is_passed_on_with_its_status(stream):
    heard, _ = await looped(Model({"error": {"message": "no"}}, status=400), stream=stream)
    assert heard.status == 400
    assert heard.json["error"]["message"] == "no"


@pytest.mark.parametrize("garbage", [b"{", b"[]", b'{"output":3}', b'{"output":[3]}', b"\xff"])
async def test_garbage_is_a_bad_gateway(garbage):
    with pytest.raises(BadGatewayError):
        await looped(Model(garbage))


@pytest.mark.parametrize("given", [None, 3, {}])
async def test_input_that_is_none_is_refused(given):
    with pytest.raises(BadRequestError) as caught:
        await looped(Model(), input=given)
    assert caught.value.param == "input"
