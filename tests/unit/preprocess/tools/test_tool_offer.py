import pytest
from tests.support.chat_templates import GEMMA, LLAMA3, SMOLLM2
from tests.support.fake_clock import FakeClock

from headrace.api.chat import ChatRequest
from headrace.api.decode import convert
from headrace.config.server import ReasoningFormat, ToolFormat
from headrace.core.errors import BadRequestError
from headrace.preprocess.chat_template import ChatTemplate
from headrace.preprocess.messages import plain_messages
from headrace.preprocess.tools.detect import reasoning_format, tool_format
from headrace.preprocess.tools.offer import MAX_TOOLS, Mode, read_offer
from headrace.preprocess.tools.plain_prompt import show_tools
from headrace.preprocess.tools.schema import check_schema, narrow

USER = {"role": "user", "content": "What is the weather?"}
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("a", "b", "c")]
CALL = {"id": "c1", "type": "function", "function": {"name": "a", "arguments": '{"x": "é"}'}}
HISTORY = [
    USER,
    {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "c2"}]},
    {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "sun"}]},
    {"role": "user", "content": "So?"},
]


def request(**fields) -> ChatRequest:
    return convert({"messages": [USER], **fields}, ChatRequest)


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "<bos>"}, FakeClock())


@pytest.mark.parametrize(
    ("choice", "mode", "names", "limit"),
    [
        (None, Mode.AUTO, ("a", "b", "c"), None),
        ("auto", Mode.AUTO, ("a", "b", "c"), None),
        ("required", Mode.REQUIRED, ("a", "b", "c"), None),
        ("any", Mode.REQUIRED, ("a", "b", "c"), None),
        ({"type": "function", "function": {"name": "b"}}, Mode.REQUIRED, ("b",), 1),
        ({"type": "function", "name": "b"}, Mode.REQUIRED, ("b",), 1),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [TOOLS[2], TOOLS[0], TOOLS[2]]},
            },
            Mode.AUTO,
            ("c", "a"),
            None,
        ),
    ],
)
def test_choices(choice, mode, names, limit):
    offer = read_offer(request(tools=TOOLS, tool_choice=choice))
    assert (offer.mode, offer.callable_names, offer.max_calls) == (mode, names, limit)
    assert offer.plain == TOOLS


def test_nothing_is_offered_where_nothing_may_be_called():
    assert read_offer(request()) is None
    assert read_offer(request(tools=[], tool_choice="auto")) is None
    assert read_offer(request(tools=TOOLS, tool_choice="none")) is None
    assert read_offer(request(functions=[{"name": "f"}], function_call="none")) is None
    # What is not called is checked all the same.
    with pytest.raises(BadRequestError):
        read_offer(request(tools=[{}], tool_choice="none"))


def test_limits():
    assert read_offer(request(tools=TOOLS, parallel_tool_calls=False)).max_calls == 1
    many = [{"function": {"name": f"f{i}"}} for i in range(MAX_TOOLS)]
    assert len(read_offer(request(tools=many)).tools) == MAX_TOOLS
    legacy = read_offer(request(functions=[{"name": "f"}]))
    assert (legacy.is_legacy, legacy.max_calls) == (True, 1)
    assert legacy.plain == [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        (3, "tool_choice"),
        ("sometimes", "tool_choice"),
        ({}, "tool_choice.name"),
        ({"function": 3}, "tool_choice.function.name"),
        ({"function": {"name": "z"}}, "tool_choice.function.name"),
        ({"type": "allowed_tools"}, "tool_choice.allowed_tools.tools"),
        ({"type": "allowed_tools", "allowed_tools": 3}, "tool_choice.allowed_tools.tools"),
        (
            {"type": "allowed_tools", "allowed_tools": {"tools": [TOOLS[0]]}},
            "tool_choice.allowed_tools.mode",
        ),
        (
            {"type": "allowed_tools", "tools": [{"name": "z"}], "mode": "auto"},
            "tool_choice.allowed_tools.tools[0].name",
        ),
    ],
)
def test_a_wrong_choice_is_named(choice, param):
    with pytest.raises(BadRequestError) as caught:
        read_offer(request(tools=TOOLS, tool_choice=choice))
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("schema", "param"),
    [
        ({"properties": 3}, "p.properties"),
        ({"properties": {"a": 3}}, "p.properties.a"),
        ({"properties": {"a": {"type": ["string", "text"]}}}, "p.properties.a.type"),
        ({"required": [3]}, "p.required"),
        ({"enum": []}, "p.enum"),
        ({"anyOf": []}, "p.anyOf"),
        ({"anyOf": [{}, 3]}, "p.anyOf[1]"),
        ({"items": [{"type": 1}]}, "p.items[0].type"),
        ({"$defs": {"x": {"minLength": -1}}}, "p.$defs.x.minLength"),
        ({"pattern": 1}, "p.pattern"),
    ],
)
def test_a_wrong_schema_is_named(schema, param):
    with pytest.raises(BadRequestError) as caught:
        check_schema(schema, "p")
    assert caught.value.param == param


def test_a_deep_schema_is_refused():
    schema: dict = {}
    for _ in range(100):
        schema = {"items": schema}
    with pytest.raises(BadRequestError, match="deep"):
        check_schema(schema, "p")


def test_narrowing_closes_what_is_not_said_to_be_open():
    one = {"properties": {"a": {"properties": {}}}}
    closed = {"properties": {}, "additionalProperties": False}
    assert narrow(one) == {"properties": {"a": closed}, "additionalProperties": False}
    for schema in (
        {"type": "object"},
        {"properties": {}, "additionalProperties": {"type": "string"}},
        {"properties": {}, "allOf": [{"type": "object"}]},
        {"properties": {}, "$ref": "#/$defs/x"},
    ):
        assert narrow(schema) == schema


@pytest.mark.parametrize(
    ("source", "tools", "reasoning"),
    [
        (SMOLLM2, ToolFormat.SMOLLM2, ReasoningFormat.NONE),
        (LLAMA3, ToolFormat.LLAMA3_JSON, ReasoningFormat.NONE),
        (GEMMA, ToolFormat.HERMES, ReasoningFormat.NONE),
        ("<tool_call> </think>", ToolFormat.HERMES, ReasoningFormat.THINK),
        ("[TOOL_CALLS]", ToolFormat.MISTRAL, ReasoningFormat.NONE),
        ("[TOOL_CALLS] [ARGS]", ToolFormat.MISTRAL_ARGS, ReasoningFormat.NONE),
        ("<start_function_call>", ToolFormat.FUNCTIONGEMMA, ReasoningFormat.NONE),
        ("<|channel|>", ToolFormat.GPT_OSS, ReasoningFormat.GPT_OSS),
        ("<|start_header_id|> [func_name1(params_name1=1)]", ToolFormat.PYTHONIC, ReasoningFormat.NONE),
    ],
)  # fmt: skip
def test_formats_are_told_from_templates(source, tools, reasoning):
    assert tool_format(ToolFormat.AUTO, source) is tools
    assert reasoning_format(ReasoningFormat.AUTO, source, has_think_token=False) is reasoning
    assert tool_format(ToolFormat.NONE, source) is ToolFormat.NONE
    assert reasoning_format(ReasoningFormat.THINK, source, has_think_token=False) is ReasoningFormat.THINK  # fmt: skip


def test_a_vocabulary_with_think_tokens_reasons():
    wanted = ReasoningFormat.AUTO
    assert reasoning_format(wanted, "", has_think_token=True) is ReasoningFormat.THINK


def test_templates_tell_what_they_take():
    assert template(LLAMA3).knows_tools
    assert not template(SMOLLM2).knows_tools
    assert template(SMOLLM2).takes_system
    assert not template(GEMMA).takes_system
    writes = "{% for m in messages %}{% for c in m.tool_calls %}{{ ARGS }}{% endfor %}{% endfor %}"
    for expression, wanted in [
        ("c.function.arguments | tojson", False),
        ("'```' + c.function.arguments + '```'", True),
        ("c.function.arguments if c.function.arguments is string else c.function.arguments | tojson", False),
        ("''", False),
    ]:  # fmt: skip
        made = template(writes.replace("ARGS", expression))
        assert made.wants_text_arguments is wanted


def plain(history=HISTORY, *, text=False) -> list[dict]:
    messages = convert({"messages": history}, ChatRequest).messages
    return plain_messages(messages, knows_developer=False, text_arguments=text)


def test_results_learn_the_name_of_their_function():
    messages = plain()
    assert [message.get("name") for message in messages] == [None, None, "a", "a", None]
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == {"x": "é"}
    assert plain(text=True)[1]["tool_calls"][0]["function"]["arguments"] == '{"x": "é"}'


def test_arguments_may_be_objects_and_older_words_are_understood():
    history = [
        USER,
        {"role": "assistant", "function_call": {"name": "a", "arguments": {"x": 1}}},
        {"role": "function", "name": "a", "content": "r"},
    ]
    messages = plain(history)
    assert messages[1]["tool_calls"] == [
        {"type": "function", "function": {"name": "a", "arguments": {"x": 1}}}
    ]
    assert messages[2] == {"role": "tool", "content": "r", "name": "a"}
    assert plain(history, text=True)[1]["tool_calls"][0]["function"]["arguments"] == '{"x": 1}'


def test_a_template_without_tools_is_told_in_words():
    offer = read_offer(request(tools=TOOLS))
    shown = show_tools(plain(), offer, ToolFormat.SMOLLM2, takes_system=True)
    assert [message["role"] for message in shown] == ["system", "user", "assistant", "user"]
    assert '{"name":"b"}' in shown[0]["content"]
    assert (
        '<tool_call>[{"name": "NAME", "arguments": {ARGUMENTS}}]</tool_call>' in shown[0]["content"]
    )
    assert shown[2]["content"] == (
        '<tool_call>[{"name": "a", "arguments": {"x":"é"}}, {"name": "a", "arguments": {"x":"é"}}]'
        "</tool_call>"
    )
    assert shown[3]["content"] == (
        "<tool_response>\nrain\n</tool_response>\n<tool_response>\nsun\n</tool_response>\nSo?"
    )


def test_words_go_where_the_template_takes_them():
    offer = read_offer(request(tools=TOOLS))
    system = [{"role": "system", "content": "Be brief."}, USER]
    shown = show_tools(plain(system), offer, ToolFormat.HERMES, takes_system=True)
    assert shown[0]["content"].startswith("Be brief.\n\nYou can call functions")
    shown = show_tools(plain([USER]), offer, ToolFormat.HERMES, takes_system=False)
    assert [message["role"] for message in shown] == ["user"]
    assert shown[0]["content"].endswith("\n\nWhat is the weather?")
    # Without tools, the history alone is put in words.
    shown = show_tools(plain(), None, ToolFormat.HERMES, takes_system=True)
    assert [message["role"] for message in shown] == ["user", "assistant", "user"]
    assert template(GEMMA).render(shown)
