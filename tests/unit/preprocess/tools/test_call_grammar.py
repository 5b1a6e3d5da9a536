"""The grammar of forced calls takes the frame's text and good arguments, and nothing else."""

import json

import pytest

from headrace.api.chat import ChatRequest
from headrace.api.decode import convert
from headrace.config.server import ReasoningFormat, ToolFormat
from headrace.core.grammar import Grammar, GrammarKind
from headrace.grammar.definition import definition
from headrace.preprocess.reading import ReasoningReading
from headrace.preprocess.tools.frames import FRAMES
from headrace.preprocess.tools.grammar import (
    MAX_FORCED_CALLS,
    bounded_answer,
    call_grammar,
    schema_of,
)
from headrace.preprocess.tools.offer import Offer, read_offer

llguidance = pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "string"},
        "n": {"type": "integer"},
        "deep": {"type": "object", "properties": {"x": {"enum": ["p", "q"]}}},
    },
    "required": ["a"],
}
GOOD = '{"a": "x", "n": 3, "deep": {"x": "q"}}'
THINK = ReasoningReading(format=ReasoningFormat.THINK)
OPEN = ReasoningReading(format=ReasoningFormat.THINK, is_open=True)
HARMONY = ReasoningReading(format=ReasoningFormat.GPT_OSS)


def offer(*, strict: bool = False, **fields) -> Offer:
    functions = [{"name": "get", "strict": strict, "parameters": SCHEMA}, {"name": "get_x"}]
    tools = [{"type": "function", "function": function} for function in functions]
    messages = [{"role": "user", "content": "?"}]
    found = read_offer(convert({"messages": messages, "tools": tools, **fields}, ChatRequest))
    assert found is not None
    return found


def takes(made: Offer, kind: ToolFormat, text: str, reasoning=None, special=None) -> tuple:
    """(all characters are taken, the answer may end there). Tokens are bytes."""
    grammar = call_grammar(made, kind, reasoning, special or {})
    assert grammar is not None
    return matches(grammar, text)


def matches(grammar: Grammar, text: str) -> tuple:
    source = definition(grammar)
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), source, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data), matcher.is_accepting()


def write(kind: ToolFormat, *calls: tuple[str, str]) -> str:
    frame = FRAMES[kind]
    texts = [frame.begin(name) + arguments + frame.tail for name, arguments in calls]
    return frame.opening + frame.between.join(texts) + frame.closing


@pytest.mark.parametrize("kind", FRAMES)
def test_good_calls_and_nothing_else(kind):
    required = offer(tool_choice="required")
    assert takes(required, kind, write(kind, ("get", GOOD))) == (True, True)
    assert takes(required, kind, write(kind, ("get_x", "{}"), ("get", GOOD))) == (True, True)
    one = offer(tool_choice="required", parallel_tool_calls=False)
    assert takes(one, kind, write(kind, ("get_x", "{}"))) == (True, True)
    assert takes(one, kind, write(kind, ("get_x", "{}"), ("get_x", "{}")))[0] is False
    named = offer(tool_choice={"type": "function", "function": {"name": "get"}})
    assert takes(named, kind, write(kind, ("get", GOOD))) == (True, True)
    assert takes(named, kind, write(kind, ("get_x", "{}")))[0] is False
    for bad in (
        '{"n": 3}',
        '{"a": "x", "other": 1}',
        '{"a": 1}',
        "[]",
        '{"a": "x", "deep": {"x": 1}}',
    ):
        assert takes(required, kind, write(kind, ("get", bad)))[0] is False
    for bad in ("Sure! " + write(kind, ("get", GOOD)), write(kind, ("got", GOOD))):
        assert takes(required, kind, bad)[0] is False


def test_calls_come_to_an_end():
    required = offer(tool_choice="required")
    many = [("get_x", "{}")] * MAX_FORCED_CALLS
    assert takes(required, ToolFormat.HERMES, write(ToolFormat.HERMES, *many)) == (True, True)
    text = write(ToolFormat.HERMES, *many, ("get_x", "{}"))
    assert takes(required, ToolFormat.HERMES, text)[0] is False


def test_reasoning_may_come_first_and_must_where_it_is_open():
    required = offer(tool_choice="required")
    call = write(ToolFormat.HERMES, ("get_x", "{}"))
    for text, reasoning, good in [
        (f"<think>\nHm </thin.\n</think>\n\n{call}", THINK, True),
        (call, THINK, True),
        (f"Hm.</think>{call}", OPEN, True),
        (f"Hm.</think>\nSure. {call}", OPEN, False),
    ]:
        assert takes(required, ToolFormat.HERMES, text, reasoning) == (good, good)
    before = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    call = write(ToolFormat.GPT_OSS, ("get_x", "{}"))
    for text in (call, before + call):
        assert takes(required, ToolFormat.GPT_OSS, text, HARMONY) == (True, True)


@pytest.mark.parametrize(
    "kind",
    [ToolFormat.HERMES, ToolFormat.SMOLLM2, ToolFormat.MISTRAL, ToolFormat.FUNCTIONGEMMA],
)
def test_strict_tools_guard_calls_in_free_text(kind):
    strict = offer(strict=True)
    call = write(kind, ("get", GOOD))
    for text in ("Just text, 1 < 2.", call, f"Hm. {call}", f"{call} and {call} then."):
        assert takes(strict, kind, text) == (True, True)
    for bad in (write(kind, ("got", GOOD)), write(kind, ("get", '{"n": 3}'))):
        assert takes(strict, kind, f"Hm. {bad}")[0] is False
    assert call_grammar(offer(), kind, None, {}) is None


def test_special_tokens_are_named_by_id():
    grammar = call_grammar(
        offer(tool_choice="required"),
        ToolFormat.MISTRAL_ARGS,
        None,
        {"[TOOL_CALLS]": 5, "[ARGS]": 32},
    )
    assert '<[5]> "get" <[32]> %json' in grammar.text
    guarded = call_grammar(offer(strict=True), ToolFormat.MISTRAL, None, {"[TOOL_CALLS]": 5})
    assert "block: TEXT <[5]>" in guarded.text


def test_a_schema_that_says_nothing_allows_no_arguments():
    get, get_x = offer().tools
    assert schema_of(get_x) == {"type": "object", "properties": {}, "additionalProperties": False}
    made = schema_of(get)
    assert made["additionalProperties"] is False
    assert made["properties"]["deep"]["additionalProperties"] is False
    assert get.parameters == json.loads(json.dumps(SCHEMA))


@pytest.mark.parametrize(
    ("bound", "good", "bad"),
    [
        (Grammar(GrammarKind.JSON_SCHEMA, '{"type": "boolean"}'), "true", "yes"),
        (Grammar(GrammarKind.REGEX, "[0-9]+/s"), "12/s", "x"),
        (Grammar(GrammarKind.LARK, 'start: "yes" | "no"'), "yes", "maybe"),
    ],
)
@pytest.mark.parametrize("kind", [ToolFormat.HERMES, ToolFormat.LLAMA3_JSON])
def test_a_bounded_answer_may_be_calls_instead(bound, good, bad, kind):
    call = write(kind, ("get", GOOD))
    grammar = bounded_answer(bound, None, {}, (offer(), kind))
    assert matches(grammar, good) == (True, True)
    assert matches(grammar, call) == (True, True)
    assert matches(grammar, bad)[0] is False
    assert matches(grammar, f"Sure. {call}")[0] is False
    thinking = bounded_answer(bound, OPEN, {}, (offer(), kind))
    for text in (f"Hm.</think>\n\n{good}", f"Hm.</think>\n\n{call}"):
        assert matches(thinking, text) == (True, True)
    alone = bounded_answer(bound, OPEN, {})
    assert matches(alone, f"Hm.</think>{good}") == (True, True)
    assert bounded_answer(bound, None, {}) is bound
