import pytest
from tests.support.tiny_tokenizers import byte_level_tokenizer, sentencepiece_tokenizer

from headrace.completion.detokenizer import Detokenizer

EMOJI = "😀".encode()


def stream(pieces, **options):
    table = dict(enumerate(pieces))
    detokenizer = Detokenizer(table, **options)
    return [detokenizer.push(number) for number in table], detokenizer.flush()


def test_a_character_comes_with_its_last_byte():
    assert stream([EMOJI[:1], EMOJI[1:3], EMOJI[3:], b"a"]) == (["", "", "😀", "a"], "")


def test_what_comes_before_a_broken_character_is_not_held():
    assert stream([b"ab" + EMOJI[:2], EMOJI[2:] + b"c"]) == (["ab", "😀c"], "")


def test_a_broken_tail_is_one_replacement():
    assert stream([b"a", EMOJI[:3]]) == (["a", ""], "\ufffd")
    assert stream([b"\xff\xc3"]) == (["\ufffd"], "\ufffd")


def test_bytes_that_cannot_go_on_are_replaced_at_once():
    assert stream([b"\xe2\x82", b"A"]) == (["", "\ufffdA"], "")
    assert stream([b"\x80", b"\xc0\xaf"]) == (["\ufffd", "\ufffd\ufffd"], "")


def test_tokens_without_text_leave_a_character_open():
    assert stream([EMOJI[:2], b"", EMOJI[2:]]) == (["", "", "😀"], "")


def test_one_space_at_the_start_is_dropped_if_asked_for():
    assert stream([b"", b"  a", b" b"], strips_space=True) == (["", " a", " b"], "")
    assert stream([b"a", b" b"], strips_space=True) == (["a", " b"], "")
    assert stream([b" a"]) == ([" a"], "")


def test_flush_begins_anew():
    detokenizer = Detokenizer({0: EMOJI[:2], 1: b"a"})
    assert (detokenizer.push(0), detokenizer.flush(), detokenizer.flush()) == ("", "\ufffd", "")
    assert detokenizer.push(1) == "a"


@pytest.mark.parametrize("build", [byte_level_tokenizer, sentencepiece_tokenizer])
def test_special_tokens_are_left_out_or_spelt(build):
    tokenizer = build()
    ids = [*tokenizer.encode("hello"), 2, *tokenizer.encode("hello", add_special=False)]
    assert Detokenizer(tokenizer.text_bytes).push_all(ids).split() in (
        ["hellohello"],
        ["hello"] * 2,
    )
    assert tokenizer.facts.eos_token in Detokenizer(tokenizer.all_bytes).push_all(ids)
