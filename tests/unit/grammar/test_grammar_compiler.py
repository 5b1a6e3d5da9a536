"""Grammars of every kind are compiled once, matched by bytes, and refused in one sentence."""

import threading

import pytest
from tests.support.grammars import (
    END,
    SPECIAL,
    allowed,
    byte_compiler,
    lark,
    regex,
    schema,
    verdict,
)
from tests.support.tiny_tokenizers import byte_level_tokenizer, sentencepiece_tokenizer

from headrace.core.errors import GrammarError
from headrace.core.grammar import Grammar, GrammarKind
from headrace.grammar import compiler as compiler_module
from headrace.grammar.compiler import GrammarCompiler
from headrace.grammar.matcher import Matcher

BUNDLE = Grammar(
    GrammarKind.BUNDLE,
    '{"grammars": [{"name": "top", "lark_grammar": "start: \\"x\\" @sub"},'
    ' {"name": "sub", "lark_grammar": "start: /[0-9]+/"}]}',
)


@pytest.mark.parametrize(
    ("grammar", "text", "expected"),
    [
        (regex("[a-c]{2}"), "ab", "yes"),
        (regex("[a-c]{2}"), "a", "more"),
        (regex("[a-c]{2}"), "ad", "no"),
        (regex("ñ+"), "ññ", "yes"),
        (lark('start: "yes" | "no"'), "no", "yes"),
        (Grammar(GrammarKind.EBNF, 'root ::= "a" [0-9]+'), "a12", "yes"),
        (Grammar(GrammarKind.EBNF, 'start: "a" /[0-9]+/'), "a12", "yes"),
        (BUNDLE, "x7", "yes"),
        (BUNDLE, "x", "more"),
        (schema('{"type": "integer"}'), "12", "yes"),
        (schema('{"enum": ["a", 1, null]}'), '"a"', "yes"),
        (schema('{"enum": ["a", 1, null]}'), "2", "no"),
        (schema('{"type": "object"}'), '{"a": [1,\n    2]}', "yes"),
        (schema('{"type": "object"}'), '{"a":  1}', "no"),
        (schema("{}"), "[]", "yes"),
    ],
)
def test_a_grammar_takes_its_language(grammar, text, expected):
    assert verdict(grammar, text) == expected


@pytest.mark.parametrize(
    "grammar",
    [
        regex("("),
        lark("start: nobody"),
        lark("no grammar at all"),
        Grammar(GrammarKind.EBNF, "root ::= ("),
        Grammar(GrammarKind.BUNDLE, "[]"),
        schema('{"type": 5}'),
        schema('{"type": "integer", "minimum": 5, "maximum": 3}'),
        schema('{"uniqueItems": true, "type": "array"}'),
        schema('{"$ref": "http://example.com/x.json"}'),
        schema("[1]"),
        schema("not json"),
        schema("{" * 5000),
    ],
)
def test_a_faulty_grammar_is_refused_in_one_sentence(grammar):
    with pytest.raises(GrammarError) as caught:
        byte_compiler().compile(grammar)
    assert 0 < len(str(caught.value)) <= 400
    assert "\n" not in str(caught.value)


def test_special_tokens_are_allowed_only_where_they_are_named():
    compiler = byte_compiler()
    assert SPECIAL not in allowed(Matcher(compiler.compile(regex("(.|\n)*"))))
    assert allowed(Matcher(compiler.compile(lark(f"start: <[{SPECIAL}]>")))) == {SPECIAL}


def test_the_same_grammar_is_compiled_once():
    compiler = byte_compiler()
    assert compiler.find(regex("a")) is None
    first = compiler.compile(regex("a"))
    assert compiler.compile(regex("a")) is first
    assert compiler.find(regex("a")) is first
    assert compiler.compile(regex("b")) is not first


def test_what_is_in_use_is_kept_and_the_rest_is_bounded(monkeypatch):
    monkeypatch.setattr(compiler_module, "MAX_KEPT", 2)
    compiler = byte_compiler()
    matcher = Matcher(compiler.compile(regex("a")))
    for letter in "bcd":
        compiler.compile(regex(letter))
    assert compiler.find(regex("a")) is not None
    assert compiler.find(regex("b")) is None
    assert matcher.accept(b"a")


def test_threads_may_compile_at_the_same_time():
    compiler, found = byte_compiler(), []

    def work(letter):
        found.append(verdict(regex(letter + "{3}"), letter * 3, compiler))

    threads = [threading.Thread(target=work, args=(letter,)) for letter in "abcd" * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["yes"] * 8


def test_a_model_without_an_end_is_complete_by_itself():
    matcher = Matcher(byte_compiler(end_ids=()).compile(regex("ab")))
    assert not matcher.accept(b"a") or not matcher.is_complete
    assert matcher.accept(b"b")
    assert matcher.is_complete


@pytest.mark.parametrize("tokenizer", [byte_level_tokenizer(), sentencepiece_tokenizer()])
def test_the_vocabularies_of_real_tokenizers_spell_the_answer(tokenizer):
    size = tokenizer.vocab_size + 3  # a model may have more logits than its tokenizer has tokens
    compiler = GrammarCompiler(lambda: (tokenizer.vocabulary(size), tokenizer.encode))
    matcher = Matcher(compiler.compile(schema('{"const": {"the": "an ñ"}}')))
    spelt = b""
    while not matcher.is_complete:
        ids = allowed(matcher)
        assert max(ids) < tokenizer.vocab_size
        token_id = min(ids - set(tokenizer.facts.eos_token_ids))
        spelt += tokenizer.all_bytes[token_id]
        assert matcher.accept([token_id])
    assert spelt.decode().replace(" ", "").replace("\n", "") == '{"the":"anñ"}'


def test_a_matcher_moves_back_and_on():
    matcher = Matcher(byte_compiler().compile(regex("a[bc]d")))
    assert matcher.try_accept(ord("a"))
    assert not matcher.try_accept(ord("d"))
    assert matcher.try_accept(ord("b"))
    matcher.rollback(1)
    assert allowed(matcher) == {ord("b"), ord("c")}
    assert matcher.accept(b"cd")
    assert matcher.is_complete
    assert allowed(matcher) == {END}
    matcher.rollback(3)
    assert allowed(matcher) == {ord("a")}
    assert not matcher.accept(b"x")
    assert matcher.fault
    assert not matcher.is_complete
