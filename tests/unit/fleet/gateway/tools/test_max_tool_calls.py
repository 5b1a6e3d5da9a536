"""`max_tool_calls`: the calls of one response that are made for its client, over all rounds."""

import pytest
from tests.support.response_rounds import MCP, MINE, Model, looped, response, text, wants

from headrace.core.errors import BadRequestError

SEARCH = {"type": "web_search"}


def several(count, first=0):
    return [wants("calc__add", call_id=f"c{n}") for n in range(first, first + count)]


def kinds(heard):
    return [item["type"] for item in heard.json["output"]]


async def test_it_bounds_the_calls_of_all_rounds_together():
    model = Model(response(*several(2)), response(*several(2, 2)), response(text("done"), tokens=5))
    heard, sources = await looped(model, max_tool_calls=3)
    assert len(sources.opened[0].called) == 3
    assert kinds(heard) == ["mcp_call"] * 3 + ["message"]
    assert [body.get("max_tool_calls") for body in model.asked] == [3, 1, None]
    assert heard.json["max_tool_calls"] == 3
    # The fourth is as if it had not been asked for, and no further one may be.
    calls = [item["call_id"] for item in model.asked[2]["input"] if item.get("type")]
    assert calls == ["c0", "c1", "c0", "c1", "c2", "c2"]
    assert model.asked[2]["tool_choice"] == "none"
    assert model.asked[2]["tools"] == model.asked[0]["tools"]


async def test_a_model_that_calls_on_all_the_same_is_not_asked_again():
    model = Model(response(*several(1)), response(text("so far"), *several(1, 1)))
    heard, sources = await looped(model, max_tool_calls=1)
    assert len(sources.opened[0].called) == 1
    assert kinds(heard) == ["mcp_call", "message"]


async def test_none_at_all_leaves_the_tools_of_the_client():
    chosen = {"type": "function", "name": "calc__add"}
    model = Model(response(wants("mine"), wants("calc__add")))
    heard, sources = await looped(
        model, max_tool_calls=0, tools=[MCP, MINE, SEARCH], tool_choice=chosen
    )
    assert not sources.opened[0].called
    assert model.asked[0]["tools"] == [MINE]
    assert model.asked[0]["tool_choice"] == "auto"
    assert kinds(heard) == ["function_call"]
    assert heard.json["max_tool_calls"] == 0


@pytest.mark.parametrize(
    ("allowed", "choice"),
    [
        ([{"type": "function", "name": "calc__add"}, {"type": "function", "name": "mine"}], ["mine"]),
        ([{"type": "function", "name": "calc__add"}], None),
        ("garbage", None),
    ],
)  # fmt: skip
async def test_what_may_be_called_names_no_tool_that_is_gone(allowed, choice):
    model = Model(response(text("x")))
    given = {"type": "allowed_tools", "mode": "auto", "tools": allowed}
    await looped(model, max_tool_calls=0, tools=[MCP, MINE], tool_choice=given)
    told = model.asked[0]["tool_choice"]
    assert (None if told == "none" else [tool["name"] for tool in told["tools"]]) == choice


async def test_calls_that_a_replica_makes_itself_count_too():
    searched = {"type": "web_search_call", "id": "ws", "status": "completed"}
    model = Model(
        response(searched, *several(2)), response(text("done")), response(text("not asked"))
    )
    heard, sources = await looped(model, max_tool_calls=2, tools=[MCP, SEARCH])
    assert len(sources.opened[0].called) == 1
    assert [body.get("max_tool_calls") for body in model.asked] == [2, None]
    assert kinds(heard) == ["mcp_call", "message"]


@pytest.mark.parametrize(
    ("of_client", "configured", "made", "told"), [(2, 1, 1, 2), (1, 2, 1, 1), (None, 2, 2, 3)]
)
async def test_the_smaller_of_both_bounds_counts(of_client, configured, made, told):
    """Beyond the operator's bound a model is told so; beyond the client's its calls are ignored."""
    model = Model(response(*several(3)), response(text("done")))
    heard, sources = await looped(model, config={"max_calls": configured}, max_tool_calls=of_client)
    assert len(sources.opened[0].called) == made
    assert kinds(heard) == ["mcp_call"] * told + ["message"]


async def test_a_stream_keeps_it_too():
    model = Model(response(*several(2)), response(text("done")))
    heard, sources = await looped(model, max_tool_calls=1, stream=True)
    assert len(sources.opened[0].called) == 1
    assert heard.events[-1]["response"]["max_tool_calls"] == 1


@pytest.mark.parametrize("bad", [-1, 1.5, "3", True, [1]])
async def test_what_is_no_number_of_calls_is_refused_before_a_model_is_asked(bad):
    model = Model()
    with pytest.raises(BadRequestError) as caught:
        await looped(model, max_tool_calls=bad)
    assert caught.value.param == "max_tool_calls"
    assert not model.asked


async def test_names_that_are_none_are_left_to_the_replica():
    odd = {"type": "function", "name": ["mine"]}
    model = Model(response({"type": ["x"]}, {"type": "function_call", "name": ["calc__add"]}))
    heard, _ = await looped(model, max_tool_calls=0, tools=[MCP, odd])
    assert model.asked[0]["tools"] == [odd]
    assert len(heard.json["output"]) == 2


async def test_what_was_cut_off_calls_nothing():
    model = Model({**response(text("so"), wants("calc__add", '{"a": ')), "status": "incomplete"})
    heard, sources = await looped(model)
    assert not sources.opened[0].called
    assert heard.json["status"] == "incomplete"
    assert kinds(heard) == ["message"]
