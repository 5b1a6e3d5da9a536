"""Vocabularies and compilers for tests of grammars."""

from headrace.core.grammar import Grammar, GrammarKind
from headrace.grammar.compiler import GrammarCompiler
from headrace.grammar.matcher import MaskFiller, Matcher
from headrace.grammar.vocabulary import Vocabulary

#: Every byte is the token of its number; behind them an end and a special token.
END, SPECIAL, SIZE = 256, 257, 300


def byte_vocabulary(*, end_ids=(END,)):
    tokens = [bytes([i]) for i in range(256)] + [b"<end>", b"<special>"] + [b""] * (SIZE - 258)
    return Vocabulary(tokens, [END, SPECIAL], list(end_ids))


def byte_compiler(**options):
    return GrammarCompiler(lambda: (byte_vocabulary(**options), None))


def regex(pattern):
    return Grammar(GrammarKind.REGEX, pattern)


def schema(text):
    return Grammar(GrammarKind.JSON_SCHEMA, text)


def lark(text):
    return Grammar(GrammarKind.LARK, text)


def allowed(matcher):
    """Ids that may come next."""
    import numpy as np

    table = np.zeros((1, -(-matcher.num_tokens // 32)), np.uint32)
    MaskFiller().fill([(matcher, 0)], table)
    bits = np.unpackbits(table.view(np.uint8), bitorder="little")
    return set(bits.nonzero()[0].tolist())


def verdict(grammar, text, compiler=None):
    """Whether a grammar takes a text byte by byte: "no", "more" (it must go on) or "yes"."""
    matcher = Matcher((compiler or byte_compiler()).compile(grammar))
    for byte in text.encode():
        if byte not in allowed(matcher):
            return "no"
        assert matcher.accept([byte])
    return "yes" if END in allowed(matcher) else "more"
