"""Every dialect's way to bound an answer becomes one grammar, or an error that names the field."""

import json

import pytest

from headrace.api.chat import ChatRequest
from headrace.api.decode import convert
from headrace.core.errors import BadRequestError
from headrace.core.grammar import GrammarKind
from headrace.core.sampling import SamplingParams
from headrace.preprocess.constraint import (
    ANY_OBJECT,
    MAX_CHARS,
    MAX_REGEX_CHARS,
    constraint_field,
    read_constraint,
)
from headrace.preprocess.params import bounded

SCHEMA = {"type": "object", "properties": {"ñ": {"type": "integer"}}}
TEXT = json.dumps(SCHEMA, ensure_ascii=False, separators=(",", ":"))
TAGS = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f"]}


def wire(**fields):
    return convert({"messages": [{"role": "user", "content": "x"}], **fields}, ChatRequest)


def read(**fields):
    found = read_constraint(wire(**fields))
    assert found is not None
    return found.field, found.grammar.kind, found.grammar.text


def strict(schema, **more):
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, **more}}


@pytest.mark.parametrize(
    ("fields", "field", "kind", "text"),
    [
        (
            {"response_format": strict(SCHEMA, strict=True)},
            "response_format.json_schema.schema",
            GrammarKind.JSON_SCHEMA,
            TEXT,
        ),
        (
            {"response_format": {"type": "json_schema", "schema": SCHEMA}},
            "response_format.schema",
            GrammarKind.JSON_SCHEMA,
            TEXT,
        ),
        (
            {"response_format": {"type": "json_object", "schema": SCHEMA}},
            "response_format.schema",
            GrammarKind.JSON_SCHEMA,
            TEXT,
        ),
        (
            {"response_format": {"type": "json", "value": SCHEMA}},
            "response_format.value",
            GrammarKind.JSON_SCHEMA,
            TEXT,
        ),
        (
            {"response_format": {"type": "json_object"}},
            "response_format",
            ANY_OBJECT.kind,
            ANY_OBJECT.text,
        ),
        (
            {"response_format": {"type": "regex", "pattern": "a+"}},
            "response_format.pattern",
            GrammarKind.REGEX,
            "a+",
        ),
        (
            {"response_format": {"type": "grammar", "grammar": "root ::= [a]"}},
            "response_format.grammar",
            GrammarKind.EBNF,
            "root ::= [a]",
        ),
        ({"guided_json": SCHEMA}, "guided_json", GrammarKind.JSON_SCHEMA, TEXT),
        ({"guided_json": json.dumps(SCHEMA)}, "guided_json", GrammarKind.JSON_SCHEMA, TEXT),
        ({"json_schema": SCHEMA}, "json_schema", GrammarKind.JSON_SCHEMA, TEXT),
        ({"json_schema": True}, "json_schema", GrammarKind.JSON_SCHEMA, "{}"),
        ({"guided_regex": "a"}, "guided_regex", GrammarKind.REGEX, "a"),
        ({"regex": "a"}, "regex", GrammarKind.REGEX, "a"),
        ({"guided_choice": ["a", "b"]}, "guided_choice", GrammarKind.LARK, 'start: "a" | "b"'),
        ({"guided_grammar": "start: /a/"}, "guided_grammar", GrammarKind.EBNF, "start: /a/"),
        ({"grammar": "root ::= [a]"}, "grammar", GrammarKind.EBNF, "root ::= [a]"),
        ({"ebnf": "root ::= [a]"}, "ebnf", GrammarKind.EBNF, "root ::= [a]"),
        (
            {"structured_outputs": {"json": SCHEMA, "regex": None}},
            "structured_outputs.json",
            GrammarKind.JSON_SCHEMA,
            TEXT,
        ),
        (
            {"structured_outputs": {"json_object": True}},
            "structured_outputs.json_object",
            ANY_OBJECT.kind,
            ANY_OBJECT.text,
        ),
        (
            {"structured_outputs": {"choice": ["a"]}},
            "structured_outputs.choice",
            GrammarKind.LARK,
            'start: "a"',
        ),
    ],
)
def test_each_dialect_becomes_a_grammar(fields, field, kind, text):
    assert read(**fields) == (field, kind, text)
    assert constraint_field(wire(**fields)) == field.partition(".")[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"structural_tag": json.dumps(TAGS)},
        {"structural_tag": TAGS},
        {"response_format": {"type": "structural_tag", **TAGS}},
        {"structured_outputs": {"structural_tag": json.dumps(TAGS)}},
    ],
)
def test_structural_tags_become_one_grammar(fields):
    _, kind, text = read(**fields)
    assert kind is GrammarKind.LARK
    assert '[lazy]: TEXT "<f"' in text
    assert '">" %json {"type":"object"' in text


@pytest.mark.parametrize(
    "fields",
    [{}, {"response_format": {"type": "text"}}, {"structured_outputs": {}}, {"guided_json": None}],
)
def test_free_text_is_free(fields):
    assert read_constraint(wire(**fields)) is None


@pytest.mark.parametrize(
    ("form", "is_lenient"),
    [
        (strict(SCHEMA, strict=True), False),
        (strict(SCHEMA, strict=False), True),
        (strict(SCHEMA), True),
        ({"type": "json_schema", "schema": SCHEMA}, False),
    ],
)
def test_openai_s_strict_decides_whether_unknown_keywords_are_refused(form, is_lenient):
    _, _, text = read(response_format=form)
    options = json.loads(text).get("x-guidance", {})
    assert options == ({"lenient": True, "coerce_one_of": True} if is_lenient else {})


def test_a_schema_s_own_options_win():
    own = {"x-guidance": {"lenient": False}, **SCHEMA}
    _, _, text = read(response_format=strict(own))
    assert json.loads(text)["x-guidance"] == {"lenient": False, "coerce_one_of": True}


@pytest.mark.parametrize(
    ("extra", "options"),
    [
        ({"disable_any_whitespace": True}, {"whitespace_flexible": False}),
        ({"whitespace_pattern": " ?"}, {"whitespace_pattern": " ?"}),
    ],
)
def test_white_space_is_the_client_s_to_choose(extra, options):
    _, _, text = read(structured_outputs={"json": SCHEMA, **extra})
    assert json.loads(text)["x-guidance"] == options


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": 5}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": ["text"]}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": strict(5)}, "response_format.json_schema.schema"),
        ({"response_format": strict({}, strict=1)}, "response_format.json_schema.strict"),
        ({"response_format": {"type": "regex"}}, "response_format.value"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[" * 100_000}, "guided_json"),
        ({"guided_json": {"const": "x" * MAX_CHARS}}, "guided_json"),
        ({"guided_json": False}, "guided_json"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_regex": ["a"]}, "guided_regex"),
        ({"guided_regex": "a" * (MAX_REGEX_CHARS + 1)}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", 1]}, "guided_choice"),
        ({"guided_choice": ["a"] * 5000}, "guided_choice"),
        ({"guided_choice": ["a" * 1000] * 300}, "guided_choice"),
        ({"grammar": {"a": 1}}, "grammar"),
        ({"grammar": "root ::= [a]", "grammar_lazy": True}, "grammar_lazy"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"json_object": 3}}, "structured_outputs.json_object"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"structural_tag": "{"}, "structural_tag"),
        ({"structural_tag": {}}, "structural_tag.structures"),
        ({"structural_tag": {**TAGS, "triggers": []}}, "structural_tag.triggers"),
        ({"structural_tag": {**TAGS, "triggers": ["x"]}}, "structural_tag.structures[0].begin"),
        (
            {"structural_tag": {**TAGS, "structures": [{"begin": "<f", "end": 3}]}},
            "structural_tag.structures[0].end",
        ),
        ({"structural_tag": {**TAGS, "structures": ["x"]}}, "structural_tag.structures[0]"),
    ],
)
def test_a_wrong_value_is_named(fields, param):
    with pytest.raises(BadRequestError) as caught:
        read_constraint(wire(**fields))
    assert caught.value.param == param
    assert str(caught.value).startswith(f"'{param}'")


def test_without_an_end_the_answer_goes_on_as_long_as_the_grammar_lets_it():
    params = SamplingParams(max_tokens=50, min_tokens=3, ignore_eos=True)
    assert bounded(params) == SamplingParams(max_tokens=50, min_tokens=50)
    plain = SamplingParams(max_tokens=50, min_tokens=3)
    assert bounded(plain) is plain
