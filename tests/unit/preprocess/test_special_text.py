import random

import pytest
from tests.support.nasty_text import nasty_strings
from tests.support.tiny_tokenizers import byte_level_tokenizer, sentencepiece_tokenizer

from headrace.preprocess.special_text import MARKS, SpecialTokens

MARK = MARKS[-1]


def test_the_leftmost_and_then_the_longest_is_found():
    special = SpecialTokens(["<a>", "<a><b>", "[x]", ""])
    assert special.find("..[x]<a><b>") == (2, 5)
    assert special.find("..[x]<a><b>", 3) == (5, 11)
    assert special.find("<<a>") == (1, 4)
    assert special.find("<a") is None
    assert SpecialTokens([]).find("<a>") is None


def test_characters_that_mean_something_in_patterns_are_plain():
    special = SpecialTokens(["^s^", "]e[", "-m-", "\\x\\"])
    for text in ("^s^", "]e[", "-m-", "\\x\\"):
        assert special.find("a" + text) == (1, 4)
    assert special.find("abc") is None


def test_every_text_of_a_value_is_disarmed():
    special = SpecialTokens(["<a>"])
    value = [{"k<a>": "x<a>y", "n": 1, "none": None}, ["<a><a>"]]
    broken = f"<{MARK}a>"
    assert special.disarm(value, MARK) == [
        {f"k{broken}": f"x{broken}y", "n": 1, "none": None}, [broken * 2],
    ]  # fmt: skip
    assert special.are_in(value)
    assert not special.are_in(special.disarm(value, MARK))
    assert not special.are_in([{"k": 1}, None, "<", ["a>"]])


@pytest.mark.parametrize("build", [byte_level_tokenizer, sentencepiece_tokenizer])
def test_disarmed_text_never_makes_a_special_token(build):
    tokenizer = build()
    special = tokenizer.special_tokens
    ids = {token.id for token in tokenizer.facts.added if token.special}
    names = [token.content for token in tokenizer.facts.added if token.special]
    chance = random.Random(5)
    for text in nasty_strings(500):
        dirty = text + chance.choice(names) + text[:3]
        marked = special.disarm(dirty, MARK)
        found = tokenizer.encode_marked(marked, MARK, add_special=False)
        assert not ids & set(found), repr(dirty)
        if "▁" not in dirty:
            assert tokenizer.decode(found) == dirty


def test_the_template_s_own_tokens_stay_special():
    tokenizer = byte_level_tokenizer()
    marked = tokenizer.special_tokens.disarm("a<|im_end|>b", MARK)
    ids = tokenizer.encode_marked(f"<|im_start|>{marked}<|im_end|>", MARK)
    assert (ids[0], ids[-1]) == (1, 2)
    assert not {1, 2} & set(ids[1:-1])
    assert tokenizer.decode(ids) == "a<|im_end|>b"


@pytest.mark.parametrize("build", [byte_level_tokenizer, sentencepiece_tokenizer])
def test_text_without_marks_is_encoded_as_always(build):
    tokenizer = build()
    for text in nasty_strings(500):
        assert tokenizer.encode_marked(text, MARK) == tokenizer.encode(text), repr(text)


def test_white_space_that_a_token_swallows_is_swallowed_around_disarmed_text_too():
    tokenizer = sentencepiece_tokenizer(general__name="phi-3")
    assert tokenizer.encode("<turn> \nhe") == tokenizer.encode("<turn>he")
    marked = tokenizer.special_tokens.disarm("he<turn>", MARK)
    swallowed = tokenizer.encode_marked(f"<turn> \n{marked}<turn>", MARK)
    assert swallowed == tokenizer.encode_marked(f"<turn>{marked}<turn>", MARK)
    assert tokenizer.decode(swallowed) == "he<turn>"
