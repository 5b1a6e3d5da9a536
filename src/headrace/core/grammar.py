"""What bounds the text of an answer: a language, written down in one of five ways."""

from enum import StrEnum

from msgspec import Struct


class GrammarKind(StrEnum):
    """How `Grammar.text` is to be read."""

    JSON_SCHEMA = "json_schema"
    """A JSON Schema (draft 2020-12 and earlier) as JSON text: one JSON document that it accepts."""
    REGEX = "regex"
    """A regular expression that the whole text matches."""
    LARK = "lark"
    """A context-free grammar with a rule `start`, in llguidance's dialect of Lark: `%json {…}` embeds a
    schema, `/…/` a regular expression, `<name>` a special token, `[lazy]` and `[stop=…]` end free text."""
    EBNF = "ebnf"
    """llama.cpp's GBNF, which is also what other engines call EBNF, with a rule `root`; or Lark."""
    BUNDLE = "bundle"
    """llguidance's JSON form of several grammars that refer to each other: {"grammars": [{"name": …,
    "lark_grammar": …}, …]}; the first one is matched."""


class Grammar(Struct, frozen=True):
    """A language. Two values that are equal compile to one thing; texts are not normalised."""

    kind: GrammarKind
    text: str
