"""Anthropic's requests as chats: turns, tools, thinking and forms, and faults under Anthropic's names."""

import pytest

from headrace.api.decode import convert
from headrace.api.messages import CountTokensRequest, MessagesRequest
from headrace.core.errors import BadRequestError
from headrace.preprocess.messages import plain_messages
from headrace.preprocess.tools.offer import read_offer
from headrace.server.dialects.messages_request import NAMES, to_chat
from headrace.server.dialects.names import renamed

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {}}}


def chat(**fields):
    body = {"messages": HELLO, "max_tokens": 9, **fields}
    return to_chat(convert(body, MessagesRequest))


def plain(messages, **fields):
    return plain_messages(chat(messages=messages, **fields).messages, knows_developer=False)


def test_turns_and_system():
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d"},
    ]
    system = [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}]
    assert plain(messages, system=system) == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d"},
    ]
    assert plain(HELLO, system="t")[0] == {"role": "system", "content": "t"}


def test_calls_results_and_thoughts():
    messages = [
        *HELLO,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "redacted_thinking", "data": "zzz"},
                {"type": "text", "text": "wait"},
                {"type": "tool_use", "id": "1", "name": "f", "input": {"a": "é"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "before"},
                {"type": "tool_result", "tool_use_id": "1", "content": "sunny"},
                {
                    "type": "tool_result",
                    "tool_use_id": "2",
                    "is_error": True,
                    "content": [{"type": "text", "text": "no"}, {"type": "text", "text": "way"}],
                },
                {"type": "tool_result", "tool_use_id": "3"},
                {"type": "text", "text": "after"},
            ],
        },
    ]
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": "é"}}}
    assert plain(messages)[1:] == [
        {"role": "assistant", "content": "wait", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "user", "content": "before"},
        {"role": "tool", "content": "sunny", "tool_call_id": "1", "name": "f"},
        {"role": "tool", "content": "Error: no\nway", "tool_call_id": "2"},
        {"role": "tool", "content": "", "tool_call_id": "3"},
        {"role": "user", "content": "after"},
    ]


@pytest.mark.parametrize(
    ("choice", "mode", "names", "most"),
    [
        ({"type": "auto"}, "auto", ("f", "g"), None),
        ({"type": "any"}, "required", ("f", "g"), None),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", ("f", "g"), 1),
        ({"type": "tool", "name": "g"}, "required", ("g",), 1),
    ],
)
def test_tool_choice(choice, mode, names, most):
    offer = read_offer(chat(tools=[TOOL, {**TOOL, "name": "g"}], tool_choice=choice))
    assert (offer.mode, offer.callable_names, offer.max_calls) == (mode, names, most)
    assert offer.tools[0].plain["function"]["description"] == "d"


def test_tool_choice_none_offers_nothing():
    assert read_offer(chat(tools=[TOOL], tool_choice={"type": "none"})) is None


def test_thinking():
    on = chat(thinking={"type": "enabled", "budget_tokens": 2048, "display": "summarized"})
    assert (on.max_thinking_tokens, on.include_reasoning) == (2048, True)
    assert on.chat_template_kwargs == {"enable_thinking": True}
    off = chat(thinking={"type": "disabled", "budget_tokens": 5})
    assert (off.max_thinking_tokens, off.chat_template_kwargs) == (None, {"enable_thinking": False})
    hidden = chat(thinking={"type": "adaptive", "display": "omitted"})
    assert (hidden.max_thinking_tokens, hidden.include_reasoning) == (None, False)
    assert chat().chat_template_kwargs is None


def test_sampling_stops_and_form():
    schema = {"type": "object"}
    made = chat(
        stop_sequences=["x", ""],
        temperature=0.5,
        top_k=3,
        seed=4,
        metadata={"user_id": "u"},
        output_config={"format": {"type": "json_schema", "schema": schema}, "effort": "low"},
    )
    assert (made.stop, made.temperature, made.top_k, made.seed) == (["x"], 0.5, 3, 4)
    assert (made.max_tokens, made.reasoning_effort) == (9, "low")
    assert made.response_format["json_schema"]["schema"] == schema
    older = chat(output_format={"type": "json_schema", "schema": schema})
    assert older.response_format == made.response_format


def test_a_last_turn_of_the_assistant_is_continued():
    turns = [*HELLO, {"role": "assistant", "content": "The answer is"}]
    assert chat(messages=turns).continue_final_message is True
    assert chat().continue_final_message is None


def test_counting_needs_no_bound():
    assert to_chat(convert({"messages": HELLO}, CountTokensRequest)).max_tokens is None


def user(*blocks):
    return {"messages": [{"role": "user", "content": list(blocks)}]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        (user({"type": "video"}), "messages[0].content[0].type"),
        (user({"type": "image", "source": {}}), "messages[0].content[0]"),
        (user({"type": "tool_use", "id": "1", "name": "f"}), "messages[0].content[0].type"),
        (
            user({"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image"}]}),
            "messages[0].content[0].content[0]",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "1"}]}]},
            "messages[0].content[0].type",
        ),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"output_format": {"type": "xml"}}, "output_config.format"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
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
        ({"tools": [{**TOOL, "input_schema": {"type": "nonsense"}}]}, "tools[0].input_schema.type"),
        ({"tools": [{**TOOL, "name": "é"}]}, "tools[0].name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
    ],
)
def test_faults_that_chat_finds_are_named_too(fields, param):
    with pytest.raises(BadRequestError) as caught, renamed(NAMES):
        read_offer(chat(**fields))
    assert caught.value.param == param
    assert f"'{param}'" in str(caught.value)


def test_max_tokens_is_required():
    with pytest.raises(BadRequestError) as caught:
        convert({"messages": HELLO}, MessagesRequest)
    assert caught.value.param == "max_tokens"
