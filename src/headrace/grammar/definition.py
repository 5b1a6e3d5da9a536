"""A `Grammar` as llguidance wants it. Everything here may raise or run long: see `checks.py`."""

import json
from typing import Any

from headrace.core.errors import GrammarError
from headrace.core.grammar import Grammar, GrammarKind

#: White space between the tokens of a JSON document: none, one space, or a line break and its indentation.
#: Bounded, because a model that is unsure writes white space for ever when it may.
WHITE_SPACE = r"( |\n[ ]{0,40})?"


def definition(grammar: Grammar) -> str:
    """Raises GrammarError for what cannot be read; other faults show when it is compiled."""
    from llguidance import LLMatcher

    if grammar.kind is GrammarKind.JSON_SCHEMA:
        return _from_schema(grammar.text)
    if grammar.kind is GrammarKind.REGEX:
        return LLMatcher.grammar_from_regex(grammar.text)
    if grammar.kind is GrammarKind.BUNDLE:
        return grammar.text
    text = grammar.text
    if grammar.kind is GrammarKind.EBNF:
        from llguidance.gbnf_to_lark import any_to_lark

        try:
            text = any_to_lark(text)
        except Exception as error:
            raise GrammarError(f"the grammar cannot be read: {error}") from error
    return LLMatcher.grammar_from_lark(text)


def _from_schema(text: str) -> str:
    from llguidance import LLMatcher

    defaults: Any = {"whitespace_pattern": WHITE_SPACE}
    try:
        schema = json.loads(text)
        return LLMatcher.grammar_from_json_schema(schema, defaults=defaults)
    except (ValueError, TypeError, RecursionError) as error:
        raise GrammarError(f"the schema is not valid JSON: {error}") from error
