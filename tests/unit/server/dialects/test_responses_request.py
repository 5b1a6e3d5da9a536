"""Requests for responses as chats: items, tools, forms, and faults under their own names."""

import pytest

from headrace.api.decode import convert
from headrace.api.responses import InputItem, ResponsesRequest
from headrace.core.errors import BadRequestError
from headrace.preprocess.messages import plain_messages
from headrace.preprocess.tools.offer import read_offer
from headrace.server.dialects.names import renamed
from headrace.server.dialects.responses_request import NAMES, input_items, to_chat

TOOL = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}}
STORED = InputItem(type="function_call", id="fc_1", call_id="c", name="f", arguments="{}")


def find(item_id, where):
    if item_id != STORED.id:
        raise BadRequestError(f"'{where}': none", param=where)
    return STORED


def chat(history=(), **fields):
    wire = convert({"input": "hello", **fields}, ResponsesRequest)
    with renamed(NAMES):
        return to_chat(wire, history, input_items(wire, "item_x_", find))


def plain(given, history=(), **fields):
    made = chat(history, input=given, **fields)
    return plain_messages(made.messages, knows_developer=True)


def test_a_text_and_instructions():
    assert plain("hello", instructions="Be brief.") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
    ]


def test_messages_of_every_kind():
    given = [
        {"role": "developer", "content": [{"type": "input_text", "text": "d"}]},
        {"type": "message", "role": "user", "content": "u"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "a", "annotations": []}]},
        {"role": "assistant", "phase": "final_answer", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "1"}, {"type": "input_text", "text": "2"}]},
    ]  # fmt: skip
    assert plain(given) == [
        {"role": "developer", "content": "d"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "no"},
        {"role": "user", "content": "1\n2"},
    ]


def test_what_the_assistant_did_in_one_turn_is_one_message():
    given = [
        {"role": "user", "content": "u"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"role": "assistant", "content": "wait"},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"a": 1}'},
        {"type": "item_reference", "id": "fc_1"},
        {"type": "function_call_output", "call_id": "1", "output": "sunny"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]},
        {"role": "assistant", "content": "done"},
    ]  # fmt: skip
    calls = [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": {}}},
    ]
    assert plain(given) == [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "wait", "reasoning_content": "hm", "tool_calls": calls},
        {"role": "tool", "content": "sunny", "tool_call_id": "1", "name": "f"},
        {"role": "tool", "content": "x", "tool_call_id": "c", "name": "f"},
        {"role": "assistant", "content": "done", "reasoning_content": "so"},
    ]


def test_a_conversation_goes_on():
    before = [InputItem(type="message", role="user", content="u"), STORED]
    before[0] = convert(
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "u"}]},
        InputItem,
    )
    given = [{"type": "function_call_output", "call_id": "c", "output": "ok"}]
    made = plain(given, before, instructions="new")
    assert [message["role"] for message in made] == ["system", "user", "assistant", "tool"]


def test_own_items_are_whole():
    wire = convert({"input": [{"role": "user", "content": "u"}]}, ResponsesRequest)
    (item,) = input_items(wire, "item_x_", find)
    assert (item.type, item.id, item.status) == ("message", "item_x_0", "completed")
    assert item.content[0].text == "u"


def test_fields():
    made = chat(
        max_output_tokens=7, temperature=0.5, top_p=0.9, top_k=4, seed=3, top_logprobs=2,
        reasoning={"effort": "low", "summary": "auto"}, stream=True,
        stream_options={"include_obfuscation": False},
    )  # fmt: skip
    assert (made.max_completion_tokens, made.temperature, made.top_k, made.seed) == (7, 0.5, 4, 3)
    assert (made.logprobs, made.top_logprobs, made.reasoning_effort) == (True, 2, "low")
    assert (made.stream, made.stream_options) == (True, None)
    assert chat(include=["message.output_text.logprobs"]).top_logprobs == 0
    assert chat(reasoning={"effort": "none"}).chat_template_kwargs == {"enable_thinking": False}


def test_forms():
    schema = {"type": "object"}
    form = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    made = chat(text={"format": form, "verbosity": "low"}).response_format
    assert made == {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}  # fmt: skip
    for kind in ("text", "json_object"):
        assert chat(text={"format": {"type": kind}}).response_format == {"type": kind}


@pytest.mark.parametrize(
    ("choice", "mode", "names"),
    [
        (None, "auto", ("f", "g")),
        ("required", "required", ("f", "g")),
        ({"type": "function", "name": "g"}, "required", ("g",)),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]},
            "required",
            ("g",),
        ),
    ],
)  # fmt: skip
def test_tool_choice(choice, mode, names):
    offer = read_offer(chat(tools=[TOOL, {**TOOL, "name": "g"}], tool_choice=choice))
    assert (offer.mode, offer.callable_names) == (mode, names)
    assert offer.tools[0].plain == {
        "type": "function",
        "function": {"name": "f", "description": "d", "parameters": {"type": "object"}},
    }


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"type": "video"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": ""}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "1"}]}, "input[0].output"),
        ({"input": [{"type": "item_reference", "id": "rs_9"}]}, "input[0].id"),
        ({"input": [{"type": "item_reference"}]}, "input[0].id"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        (
            {"input": [{"type": "function_call_output", "call_id": "1", "output": [{"type": "input_file"}]}]},
            "input[0].output[0]",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"n": 2}, "n"),
        ({"metadata": {"a" * 65: "x"}}, "metadata"),
        ({"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)  # fmt: skip
def test_faults_are_named(fields, param):
    with pytest.raises(BadRequestError) as caught:
        chat(**fields)
    assert caught.value.param == param
    assert f"'{param}'" in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{**TOOL, "parameters": {"type": "x"}}]}, "tools[0].parameters.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name"),
    ],
)
def test_faults_that_chat_finds_are_named_too(fields, param):
    with pytest.raises(BadRequestError) as caught, renamed(NAMES):
        read_offer(chat(**fields))
    assert caught.value.param == param
    assert f"'{param}'" in str(caught.value)


@pytest.mark.parametrize(
    ("chats", "own"),
    [
        ("messages", "input"),
        ("messages[3].content[1]", "input"),
        ("response_format.json_schema.schema", "text.format.schema"),
        ("max_tokens", "max_output_tokens"),
        ("temperature", "temperature"),
        ("messages_x", "messages_x"),
    ],
)
def test_names(chats, own):
    with pytest.raises(BadRequestError) as caught, renamed(NAMES):
        raise BadRequestError(f"'{chats}': bad.", param=chats)
    assert (caught.value.param, str(caught.value)) == (own, f"'{own}': bad.")
