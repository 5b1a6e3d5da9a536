"""Grammars, compiled once for a vocabulary and kept.

Safe to use from several threads; compiling lets go of the interpreter's lock, reading the vocabulary
does not (0.1 s of CPU for 50 thousand tokens, 1.4 s for 260 thousand, once).
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast
from weakref import WeakValueDictionary

from headrace.core.errors import GrammarError
from headrace.core.grammar import Grammar
from headrace.grammar.definition import definition
from headrace.grammar.vocabulary import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

Encode = Callable[[str], list[int]]

#: Compiled grammars that are kept although no request uses them.
MAX_KEPT: Final = 64


class CompiledGrammar:
    """A grammar at its beginning. Immutable: every sequence gets a copy."""

    __slots__ = ("__weakref__", "num_tokens", "start")

    def __init__(self, start: "LLMatcher", num_tokens: int) -> None:
        self.start = start
        self.num_tokens = num_tokens
        """Of the vocabulary: bits in a mask."""


class GrammarCompiler:
    """For one vocabulary, which is read when the first grammar comes."""

    def __init__(self, read: Callable[[], tuple[Vocabulary, Encode | None]]) -> None:
        """`read` also gives the model's own way to cut text into tokens, where that is to be had."""
        self._read = read
        self._tokenizer: LLTokenizer | None = None
        self._limits: LLParserLimits | None = None
        self._num_tokens = 0
        self._kept: OrderedDict[Grammar, CompiledGrammar] = OrderedDict()
        self._alive: WeakValueDictionary[Grammar, CompiledGrammar] = WeakValueDictionary()
        self._lock = threading.Lock()
        self._read_lock = threading.Lock()

    def find(self, grammar: Grammar) -> CompiledGrammar | None:
        """What was compiled before and is still kept or in use."""
        with self._lock:
            compiled = self._alive.get(grammar)
            if compiled is not None:
                self._keep(grammar, compiled)
            return compiled

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Raises GrammarError. May take long: nothing bounds it but the grammar's size."""
        found = self.find(grammar)
        if found is not None:
            return found
        from llguidance import LLMatcher

        source = definition(grammar)
        matcher = LLMatcher(self._get_tokenizer(), source, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise GrammarError(plain(matcher.get_error()))
        compiled = CompiledGrammar(matcher, self._num_tokens)
        with self._lock:
            self._alive[grammar] = compiled
            self._keep(grammar, compiled)
        return compiled

    def warm_up(self) -> None:
        """Read the vocabulary now."""
        self._get_tokenizer()

    def _keep(self, grammar: Grammar, compiled: CompiledGrammar) -> None:
        self._kept[grammar] = compiled
        self._kept.move_to_end(grammar)
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)

    def _get_tokenizer(self) -> "LLTokenizer":
        from llguidance import LLParserLimits, LLTokenizer, TokenizerWrapper

        with self._read_lock:
            if self._tokenizer is None:
                vocabulary, encode = self._read()
                words = _Words(vocabulary, encode)
                self._limits = LLParserLimits(verbose_errors=False)
                self._num_tokens = len(words.tokens)
                self._tokenizer = LLTokenizer(
                    cast("TokenizerWrapper", words),
                    n_vocab=len(words.tokens),
                    eos_token=words.end_ids,
                )
                words.greedy = self._tokenizer.greedy_tokenize
            return self._tokenizer


class _Words:
    """The shape in which llguidance takes a vocabulary."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, encode: Encode | None) -> None:
        self.tokens = vocabulary.tokens
        self.special_token_ids = vocabulary.special_ids
        self.end_ids = vocabulary.end_ids
        if not self.end_ids:
            # A model without an end gets one that it cannot say: `Matcher.is_complete` ends its answers.
            self.end_ids = [len(self.tokens)]
            self.tokens = [*self.tokens, b"<end>"]
            self.special_token_ids = [*self.special_token_ids, *self.end_ids]
        self.eos_token_id = self.end_ids[0]
        self.greedy: Encode | None = None
        """Longest tokens first; there once the vocabulary has been read."""
        self._encode = encode
        self._special = frozenset(self.special_token_ids)

    def __call__(self, text: str) -> list[int]:
        """Tokens for text that the grammar leaves no choice in: those that the model would use."""
        if self._encode is not None:
            ids = self._encode(text)
            # A tokenizer may put a space in front, change letters, or find special tokens.
            is_exact = b"".join([self.tokens[i] for i in ids]) == text.encode()
            if is_exact and self._special.isdisjoint(ids):
                return ids
        return self.greedy(text) if self.greedy is not None else []


def plain(message: str) -> str:
    """A message of llguidance's on one line, without its own remarks, at most 300 characters."""
    text = " ".join(message.replace("<non-verbose/>", "").split())
    return text if len(text) <= 300 else f"{text[:297]}..."
