import json

import pytest
from tests.support.nasty_text import nasty_strings
from tokenizers import Regex, Tokenizer, pre_tokenizers

from headrace.preprocess.pretokenizers import PRE_TOKENIZERS, find_pre_tokenizer, specify

TEXTS = nasty_strings(500)


def compile_rule(name):
    model = {"type": "BPE", "vocab": {}, "merges": []}
    spec = {"version": "1.0", "added_tokens": [], "model": model}
    return Tokenizer.from_str(json.dumps(spec | specify(find_pre_tokenizer(name)))).pre_tokenizer


def pieces(pre_tokenizer, text):
    return [piece for piece, _ in pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_rule_keeps_every_byte(name):
    rule = compile_rule(name)
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for text in TEXTS:
        assert "".join(pieces(rule, text)) == "".join(pieces(plain, text)), repr(text)


def test_gpt2_is_the_library_s_own_byte_level():
    own = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    rule = compile_rule("gpt-2")
    for text in TEXTS:
        assert pieces(rule, text) == pieces(own, text), repr(text)


def test_starcoder_splits_digits():
    own = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    rule = compile_rule("starcoder")
    for text in TEXTS:
        assert pieces(rule, text) == pieces(own, text), repr(text)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("llama-bpe", "I'LL pay 12345 $!\n\n  ok", ["I", "'LL", "Ġpay", "Ġ", "123", "45", "Ġ$!ĊĊ", "Ġ", "Ġok"]),
        ("qwen2", "I'll pay 123\r\n\r\n x", ["I", "'ll", "Ġpay", "Ġ", "1", "2", "3", "čĊčĊ", "Ġx"]),
        ("tekken", "helloWorld HTTPServer 12", ["hello", "World", "ĠHTTPServer", "Ġ", "1", "2"]),
        ("gpt-4o", "helloWorld don't 1234", ["hello", "World", "Ġdon't", "Ġ", "123", "4"]),
        ("deepseek-v3", "abc漢字 1234 .x", ["abc", "æ¼¢åŃĹ", "Ġ", "123", "4", "Ġ.", "x"]),
        ("deepseek-coder", "ab 12\n", ["ab", "Ġ", "1", "2", "Ċ"]),
        ("default", "a,b 1234", ["a", ",", "b", "Ġ", "123", "4"]),
    ],
)  # fmt: skip
def test_known_cuts(name, text, expected):
    assert pieces(compile_rule(name), text) == expected


def test_qwen2_is_the_pipeline_that_transformers_builds():
    # transformers.convert_slow_tokenizer.Qwen2Converter: NFC, this pattern, then bytes.
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    own = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    rule = compile_rule("qwen2")
    for text in TEXTS:
        assert pieces(rule, text) == pieces(own, text), repr(text)
    assert find_pre_tokenizer("qwen2").composes
