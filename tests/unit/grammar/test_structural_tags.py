"""Free text, until a trigger begins one of the tags."""

import pytest
from tests.support.grammars import SPECIAL, allowed, byte_compiler, lark, regex, schema, verdict

from headrace.config.server import ReasoningFormat
from headrace.core.grammar import Grammar, GrammarKind
from headrace.grammar.matcher import Matcher
from headrace.grammar.tags import Tag, choice, tagged_text
from headrace.preprocess.reading import ReasoningReading
from headrace.preprocess.tools.grammar import bounded_answer

ADD = Tag(
    begin="<call=add>",
    content=schema('{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}'),
    end="</call>",
)
SAY = Tag(begin="<call=say>", content=regex("[a-z/]+"), end="</call>")
NUM = Tag(begin="[num]", content=lark("start: /[0-9]+/"), end="")
ALL = tagged_text([ADD, SAY, NUM], ["<call=", "[num]"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "yes"),
        ("plain <text> [with] <calls>", "yes"),
        ("a <call=", "more"),
        ("a <call=sub>", "no"),
        ('a <call=add>{"a": 1}</call>', "yes"),
        ('a <call=add>{"b": 1}</call>', "no"),
        ('a <call=add>{"a": 1}</call> b <call=say>hi/there</call> c [num]42', "yes"),
        ("a <call=say>HI", "no"),
        ("x [num]y", "no"),
    ],
)
def test_text_is_free_until_a_trigger(text, expected):
    assert verdict(ALL, text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a", "no"), ("<call=say>a</call>", "yes"), ("<call=say>a</call><call=say>b</call>", "yes")],
)
def test_a_required_tag_leaves_no_text(text, expected):
    assert verdict(tagged_text([ADD, SAY], ["<call="], is_required=True), text) == expected


@pytest.mark.parametrize(
    ("is_required", "text", "expected"),
    [
        (True, "<call=say>a</call>", "yes"),
        (True, "<call=say>a</call><", "no"),
        (False, "well", "yes"),
        (False, "well <call=say>a</call>", "yes"),
        (False, "well <call=say>a</call> so", "no"),
    ],
)
def test_a_single_tag_ends_the_answer(is_required, text, expected):
    grammar = tagged_text([SAY], ["<call="], is_required=is_required, is_single=True)
    assert verdict(grammar, text) == expected


def test_a_trigger_may_be_a_special_token():
    grammar = tagged_text([SAY], ["<call=say>"], special_ids={"<call=say>": SPECIAL})
    compiler = byte_compiler()
    matcher = Matcher(compiler.compile(grammar))
    assert matcher.accept(b"well ")
    assert SPECIAL in allowed(matcher)
    assert matcher.accept([SPECIAL])
    assert allowed(matcher) == {*b"abcdefghijklmnopqrstuvwxyz/"}


def test_a_trigger_that_begins_another_stands_for_both():
    assert verdict(tagged_text([SAY], ["<call=", "<call=say", "<call="]), "<call=say>x") == "more"


def test_a_tag_holds_no_grammar_of_an_unknown_shape():
    tag = Tag(begin="x", content=Grammar(GrammarKind.EBNF, "root ::= [a]"), end="")
    with pytest.raises(ValueError, match="ebnf"):
        tagged_text([tag], ["x"])


@pytest.mark.parametrize("text", ["", "a", 'q"\\\n\t', "ñ ☃", "<[1]>", "%json {}"])
def test_choices_are_taken_literally(text):
    grammar = choice([text, "other"])
    assert verdict(grammar, text) == "yes"
    assert verdict(grammar, "other") == "yes"
    assert verdict(grammar, text + "!") == "no"


THINK = ReasoningReading(format=ReasoningFormat.THINK)
OPEN = ReasoningReading(format=ReasoningFormat.THINK, is_open=True)


@pytest.mark.parametrize(
    "grammar", [regex("[0-9]+"), lark("start: /[0-9]+/"), schema('{"type":"integer"}')]
)
@pytest.mark.parametrize(
    ("reasoning", "text", "expected"),
    [
        (None, "12", "yes"),
        (None, "<think>", "no"),
        (THINK, "12", "yes"),
        (THINK, "<think>so</think>\n12", "yes"),
        (THINK, "<think>so", "more"),
        (OPEN, "so</think>12", "yes"),
        (OPEN, "so</think>so", "no"),
    ],
)
def test_reasoning_comes_before_what_is_bounded(grammar, reasoning, text, expected):
    assert verdict(bounded_answer(grammar, reasoning, {}), text) == expected


def test_a_grammar_that_cannot_be_a_part_is_left_alone():
    grammar = Grammar(GrammarKind.EBNF, "root ::= [a]")
    assert bounded_answer(grammar, THINK, {}) is grammar
