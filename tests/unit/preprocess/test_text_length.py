"""What is too long for certain is refused without tokenising, and nothing that fits ever is."""

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.tiny_tokenizers import byte_level_tokenizer, sentencepiece_tokenizer
from tokenizers import models, normalizers, pre_tokenizers

from headrace.preprocess import tokenizer as tokenizer_module
from headrace.preprocess.spelling import BYTE_ALPHABET
from headrace.preprocess.text_length import LengthBound, length_bound
from headrace.preprocess.tokenizer_data import AddedToken, Spelling

TOKENIZERS = {"bytes": byte_level_tokenizer(), "pieces": sentencepiece_tokenizer()}
PIECES = st.sampled_from(
    ["hello", " world", "  ", "\n\n", "ing", "<|im_end|>", "<turn>", "é", "😀", "\u1fbe\u0308\u0301", "\x00"]
)  # fmt: skip
TEXTS = st.lists(PIECES | st.text(max_size=4), max_size=30).map("".join)


@pytest.fixture(autouse=True)
def no_text_is_short(monkeypatch):
    monkeypatch.setattr(tokenizer_module, "_SHORT", 0)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS, repeat=st.sampled_from([1, 50]))
def test_what_is_said_to_be_longer_is(name, text, repeat):
    tokenizer, text = TOKENIZERS[name], text * repeat
    count = len(tokenizer.encode(text, add_special=False))
    for limit in (count, count + 1, 2 * count):
        assert not tokenizer.is_longer(text, limit)
    longest = max(len(token.encode()) for token in tokenizer._core.get_vocab())
    certain = len(text.encode()) // longest - 1
    if certain >= 1:
        assert tokenizer.is_longer(text, certain)


@pytest.mark.parametrize(
    ("normalizer", "text"),
    [
        (normalizers.NFC(), "\u1fbe\u0308\u0301"),
        (normalizers.NFKC(), "\U0001d633"),
        (normalizers.Lowercase(), "\u212a"),
        (normalizers.Sequence([normalizers.Lowercase(), normalizers.NFKC()]), "\U0001d40a"),
        (normalizers.Replace("hello", "he"), "hello"),
        (normalizers.Prepend("▁"), "a"),
    ],
)
def test_normalizers_that_shorten_are_reckoned_with(normalizer, text):
    core = byte_core()
    core.normalizer = normalizer
    most = length_bound(core, Spelling.BYTE_LEVEL, ()).bytes_per_token
    assert most >= 1
    text *= 100
    assert len(core.encode(text).ids) * most >= len(text.encode())


def byte_core():
    core = tokenizers.Tokenizer(models.BPE(vocab=dict(BYTE_ALPHABET), merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return core


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("normalizer", normalizers.Strip()),
        ("normalizer", normalizers.Replace("a", "")),
        ("normalizer", normalizers.Replace(tokenizers.Regex("a+"), "a")),
        ("normalizer", normalizers.Sequence([normalizers.NFC(), normalizers.StripAccents()])),
        ("pre_tokenizer", pre_tokenizers.Whitespace()),
        ("pre_tokenizer", pre_tokenizers.Split("a", "removed")),
        (
            "pre_tokenizer",
            pre_tokenizers.Sequence(
                [pre_tokenizers.ByteLevel(), pre_tokenizers.Split("a", "removed")]
            ),
        ),
        ("model", models.BPE(vocab={"a": 0}, merges=[])),
        ("model", models.Unigram([("a", 0.0)], 0)),
    ],
)
def test_where_text_may_vanish_nothing_is_certain(part, value):
    core = byte_core()
    setattr(core, part, value)
    assert length_bound(core, Spelling.BYTE_LEVEL, ()) == LengthBound()


def test_pieces_need_their_bytes_to_be_certain():
    bytes_ = {f"<0x{byte:02X}>": byte for byte in range(256)}
    core = tokenizers.Tokenizer(models.BPE(vocab=bytes_, merges=[], byte_fallback=True))
    assert length_bound(core, Spelling.BYTE_FALLBACK, ()).bytes_per_token == 6
    core.model = models.BPE(vocab=bytes_, merges=[])
    assert length_bound(core, Spelling.BYTE_FALLBACK, ()) == LengthBound()
    del bytes_["<0x04>"]
    core.model = models.BPE(vocab=bytes_, merges=[], byte_fallback=True)
    assert length_bound(core, Spelling.BYTE_FALLBACK, ()) == LengthBound()


def test_bytes_that_the_vocabulary_lacks_do_not_count():
    core = byte_core()
    alphabet = {name: byte for name, byte in BYTE_ALPHABET.items() if byte not in (4, 0xF1, 0xFF)}
    core.model = models.BPE(vocab=alphabet, merges=[])
    bound = length_bound(core, Spelling.BYTE_LEVEL, ())
    assert bound == LengthBound(1, b"\x04\xf1\xff")
    text = "a\x04\x04\x04\U00040000" * 100
    count = len(core.encode(text).ids)
    assert count == 400
    assert bound.is_passed(text, count - 1)
    assert not bound.is_passed(text, count)
    del alphabet["a"]
    core.model = models.BPE(vocab=alphabet, merges=[])
    assert length_bound(core, Spelling.BYTE_LEVEL, ()) == LengthBound()


def test_added_tokens_count_and_may_swallow_any_space():
    long = AddedToken(300, "<" + "x" * 98 + ">", special=True)
    bound = length_bound(byte_core(), Spelling.BYTE_LEVEL, (long,))
    assert bound == LengthBound(100)
    assert bound.is_passed(" " * 10_000, 99)
    greedy = AddedToken(300, "<t>", special=True, rstrip=True)
    bound = length_bound(byte_core(), Spelling.BYTE_LEVEL, (greedy,))
    assert not bound.is_passed("a" + " " * 10_000, 1)
    assert bound.is_passed("a" * 10_000, 100)


def test_gaps_in_the_vocabulary_hide_no_token():
    core = byte_core()
    vocabulary = {**BYTE_ALPHABET, "ab": 300, "abab": 5000}
    core.model = models.BPE(vocab=vocabulary, merges=[("a", "b"), ("ab", "ab")])
    assert length_bound(core, Spelling.BYTE_LEVEL, ()).bytes_per_token == 4


def test_short_texts_are_tokenised_without_looking_at_the_vocabulary(monkeypatch):
    monkeypatch.undo()
    tokenizer = byte_level_tokenizer()
    assert not tokenizer.is_longer("x" * 30_000, 10)
    assert "_bound" not in vars(tokenizer)
    assert tokenizer.is_longer("x" * 40_000, 10)
