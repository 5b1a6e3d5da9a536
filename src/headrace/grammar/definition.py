"""A `Grammar` as llguidance wants it. Everything here may raise or run long: see `checks.py`."""

from headrace.core.errors import GrammarError
from headrace.core.grammar import Grammar, GrammarKind
from headrace.grammar.schemas import with_white_space


def definition(grammar: Grammar) -> str:
    """Raises GrammarError for what cannot be read; other faults show when it is compiled."""
    from llguidance import LLMatcher

    if grammar.kind is GrammarKind.JSON_SCHEMA:
        return _from_schema(grammar)
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


def _from_schema(grammar: Grammar) -> str:
    from llguidance import LLMatcher

    try:
        return LLMatcher.grammar_from_json_schema(with_white_space(grammar).text)
    except (ValueError, TypeError, RecursionError) as error:
        raise GrammarError(f"the schema is not valid JSON: {error}") from error
