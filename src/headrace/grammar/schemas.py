"""JSON Schemas as grammars, with what llguidance is told beside them (`x-guidance`)."""

import json
from typing import Any

from headrace.core.errors import GrammarError
from headrace.core.grammar import Grammar, GrammarKind

#: White space between the tokens of a JSON document: none, one space, or a line break and its indentation.
#: Bounded, because a model that is unsure writes white space for ever when it may.
WHITE_SPACE = r"( |\n[ ]{0,40})?"


def with_options(grammar: Grammar, options: dict[str, Any]) -> Grammar:
    """A schema with options for how it is read; those that it brings along itself win."""
    if not options:
        return grammar
    schema = json.loads(grammar.text)
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    if not isinstance(schema, dict):
        raise GrammarError("a schema is an object, true or false")
    own = schema.get("x-guidance")
    merged = {**options, **(own if isinstance(own, dict) else {})}
    text = json.dumps({**schema, "x-guidance": merged}, ensure_ascii=False, separators=(",", ":"))
    return Grammar(GrammarKind.JSON_SCHEMA, text)


def with_white_space(grammar: Grammar) -> Grammar:
    """A schema whose documents have white space as we allow it, unless it says otherwise itself."""
    return with_options(grammar, {"whitespace_pattern": WHITE_SPACE})
