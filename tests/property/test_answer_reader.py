"""However an answer is cut, it is read alike; what is no call is said; nothing is lost."""

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.call_texts import BROKEN, GOOD, NAMES, joined, think_reading, tool_reading

from headrace.completion.pieces import CallArguments
from headrace.completion.reader import AnswerReader
from headrace.config.server import ReasoningFormat, ToolFormat
from headrace.preprocess.reading import Reading, ReasoningReading, ToolReading
from headrace.preprocess.tools.frames import FRAMES

FORMATS = [kind for kind in ToolFormat if kind not in (ToolFormat.AUTO, ToolFormat.NONE)]
#: What formats are made of, so that random texts come near to calls.
ATOMS = [
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<|python_start|>",
    "<|python_end|>", "<start_function_call>", "<end_function_call>", "<escape>", "call:", "<think>",
    "</think>", "<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|call|>", "analysis", "final",
    "assistant", " to=functions.add", '{"name": "add", "arguments": {"a": 1}}',
    '{"name": "get", "parameters": {}}', "add(", "add{", "a=1", "a:1", ")", "]", "[", "{", "}", '"',
    "'", "\\", "<", ">", ";", ",", ":", " ", "\n", "text", "é", "**", "add", "get_weather",
]  # fmt: skip
texts = st.lists(st.sampled_from(ATOMS), max_size=14).map("".join)


def read(reading: Reading, pieces) -> list[tuple[str, str]]:
    reader = AnswerReader(reading)
    out = [piece for text in pieces for piece in reader.feed(text)]
    return joined(out + reader.flush())


def cut(text: str, places) -> list[str]:
    edges = [0, *sorted(places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


def check_every_cutting(reading: Reading, text: str) -> list[tuple[str, str]]:
    whole = read(reading, [text])
    assert read(reading, list(text)) == whole
    for place in range(len(text) + 1):
        assert read(reading, [text[:place], text[place:]]) == whole
    return whole


@pytest.mark.parametrize(("kind", "text", "wanted"), GOOD)
def test_calls_are_found_in_every_cutting(kind, text, wanted) -> None:
    assert check_every_cutting(tool_reading(kind), text) == wanted


@pytest.mark.parametrize(("kind", "text"), BROKEN)
def test_what_is_no_call_is_said_whole(kind, text) -> None:
    assert check_every_cutting(tool_reading(kind), text) == [("said", text)]


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(FORMATS),
    st.booleans(),
    st.sampled_from([None, 1]),
    texts,
    st.sets(st.integers(0, 200), max_size=12),
)
def test_random_texts_are_read_alike_in_any_cutting(kind, thinks, limit, text, places) -> None:
    reasoning = ReasoningReading(format=ReasoningFormat.THINK) if thinks else None
    tools = ToolReading(format=kind, names=NAMES, max_calls=limit)
    reading = Reading(tools=tools, reasoning=reasoning)
    whole = read(reading, [text])
    assert read(reading, cut(text, {place for place in places if place <= len(text)})) == whole
    assert read(reading, list(text)) == whole
    calls = [value for name, value in whole if name == "arguments"]
    assert all(isinstance(msgspec.json.decode(value), dict) for value in calls)
    if limit is not None:
        assert len(calls) <= limit
    if not calls and not thinks and kind is not ToolFormat.GPT_OSS:
        assert "".join(value for _, value in whole) == text


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(FORMATS), texts, st.sets(st.integers(0, 200), max_size=8))
def test_a_forced_reader_takes_any_text(kind, text, places) -> None:
    reading = tool_reading(kind, is_forced=True)
    places = {place for place in places if place <= len(text)}
    assert read(reading, cut(text, places)) == read(reading, [text]) == read(reading, list(text))


@pytest.mark.parametrize("kind", FRAMES)
def test_forced_calls_are_told_while_they_are_written(kind) -> None:
    frame = FRAMES[kind]
    arguments = ['{"city": "a}b\\"", "days": [1, {"x": 2}]}', "{}"]
    first, second = (
        frame.begin(name) + text + frame.tail
        for name, text in zip(("get_weather", "get"), arguments, strict=True)
    )
    text = frame.opening + first + frame.between + second + frame.closing
    wanted = [
        ("call", "get_weather"), ("arguments", arguments[0]), ("call", "get"), ("arguments", "{}")
    ]  # fmt: skip
    if kind is ToolFormat.GPT_OSS:
        text = f"{first}<|call|>"
        wanted = wanted[:2]
    reading = tool_reading(kind, is_forced=True)
    assert check_every_cutting(reading, text) == wanted
    # The same text read as free text means the same: a client cannot tell the difference.
    assert [item[0] for item in read(tool_reading(kind), [text])] == [item[0] for item in wanted]


def test_forced_arguments_come_a_character_at_a_time() -> None:
    reader = AnswerReader(tool_reading(ToolFormat.HERMES, is_forced=True))
    frame = FRAMES[ToolFormat.HERMES]
    reader.feed(frame.begin("add"))
    told = [reader.feed(character)[-1] for character in '{"a": 1}']
    assert told == [CallArguments(character) for character in '{"a": 1}']


@pytest.mark.parametrize(
    ("is_open", "text", "wanted"),
    [
        (False, "<think>\nHm.\n</think>\n\nYes.", [("thought", "Hm."), ("said", "Yes.")]),
        (True, "Hm, a < b.\n\n</think>Yes.\n", [("thought", "Hm, a < b."), ("said", "Yes.\n")]),
        (False, "<think>\n\n</think>\n\nYes.", [("said", "Yes.")]),
        (False, "Yes, <think> it </think>.", [("said", "Yes, <think> it </think>.")]),
        (True, "no end </thin \n", [("thought", "no end </thin")]),
        (False, "\n<thin", [("said", "\n<thin")]),
        (False, "", []),
        (True, "a</think>b<think>c</think>", [("thought", "a"), ("said", "b<think>c</think>")]),
    ],
)
def test_think_tags(is_open, text, wanted) -> None:
    assert check_every_cutting(think_reading(is_open=is_open), text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
            [("thought", "Hm."), ("said", "Yes.")],
        ),
        ("Just text <| with a bar.", [("said", "Just text <| with a bar.")]),
        ("<|channel|>final<|message|>Yes.<|return|>", [("said", "Yes.")]),
        ("<|channel|>analy", [("said", "<|channel|>analy")]),
    ],
)
def test_harmony(text, wanted) -> None:
    assert check_every_cutting(think_reading(ReasoningFormat.GPT_OSS), text) == wanted


def test_hidden_thoughts_are_left_out() -> None:
    reading = think_reading(is_shown=False)
    assert check_every_cutting(reading, "<think>a</think>b") == [("said", "b")]


def test_reasoning_comes_before_calls() -> None:
    reading = Reading(
        tools=ToolReading(format=ToolFormat.HERMES, names=NAMES),
        reasoning=ReasoningReading(format=ReasoningFormat.THINK, is_open=True),
    )
    call = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    text = f"I may say {call} here.\n</think>\n\n{call}"
    whole = check_every_cutting(reading, text)
    assert whole == [("thought", f"I may say {call} here."), ("call", "add"), ("arguments", "{}")]


def test_one_call_is_enough_where_one_is_allowed() -> None:
    call = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    reader = AnswerReader(tool_reading(ToolFormat.HERMES, max_calls=1))
    assert [reader.is_full for c in call if reader.feed(c) is not None][-2:] == [False, True]
    assert reader.feed(call) == reader.flush() == []
