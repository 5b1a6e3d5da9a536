"""Streams of tokens: whatever is pushed in whatever pieces, the text is that of one decoding."""

import itertools

import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tests.support.nasty_text import nasty_strings
from tests.support.tiny_tokenizers import (
    byte_level_metadata,
    byte_level_tokenizer,
    sentencepiece_tokenizer,
)

from headrace.completion.detokenizer import Detokenizer
from headrace.preprocess.gguf_tokenizer import read_gguf_tokenizer
from headrace.preprocess.tokenizer_data import assemble

BYTE_LEVEL = byte_level_tokenizer()
SENTENCEPIECE = sentencepiece_tokenizer()
CORE: tokenizers.Tokenizer = assemble(read_gguf_tokenizer(byte_level_metadata(), "tiny"))
TOKENIZERS = st.sampled_from([BYTE_LEVEL, SENTENCEPIECE])
TEXTS = st.text() | st.sampled_from(nasty_strings())


@st.composite
def token_runs(draw):
    """A tokenizer, token ids (random, or a text's), and the pieces they are pushed in."""
    tokenizer = draw(TOKENIZERS)
    ids = draw(
        st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=40)
        | TEXTS.map(tokenizer.encode)
    )
    cuts = sorted(draw(st.sets(st.integers(0, len(ids)), max_size=8)) | {0, len(ids)})
    return tokenizer, ids, [ids[a:b] for a, b in itertools.pairwise(cuts)]


@given(token_runs(), st.booleans())
def test_pieces_add_up_to_one_decoding(run, skip_special):
    tokenizer, ids, pieces = run
    table = tokenizer.text_bytes if skip_special else tokenizer.all_bytes
    strips = tokenizer.facts.strips_space
    whole = tokenizer.decode(ids, skip_special=skip_special)
    by_piece = Detokenizer(table, strips_space=strips)
    assert "".join(map(by_piece.push_all, pieces)) + by_piece.flush() == whole
    by_token = Detokenizer(table, strips_space=strips)
    shown = [by_token.push(number) for number in ids]
    assert "".join(shown) + by_token.flush() == whole


@given(token_runs())
def test_nothing_shown_is_ever_taken_back(run):
    tokenizer, ids, _ = run
    detokenizer = Detokenizer(tokenizer.text_bytes)
    shown = ""
    for place, number in enumerate(ids):
        shown += detokenizer.push(number)
        so_far = b"".join(tokenizer.text_bytes[n] for n in ids[: place + 1])
        assert so_far.decode("utf-8", "replace").startswith(shown)
        # What is held is at most the start of one character.
        assert len(so_far) - len(shown.encode()) <= 3 or "\ufffd" in shown


@given(st.lists(st.integers(0, BYTE_LEVEL.vocab_size - 1), max_size=40), st.booleans())
def test_byte_level_equals_hugging_face_for_any_ids(ids, skip_special):
    expected = CORE.decode(ids, skip_special_tokens=skip_special)
    assert BYTE_LEVEL.decode(ids, skip_special=skip_special) == expected


@given(TOKENIZERS, TEXTS)
def test_text_comes_back(tokenizer, text):
    if tokenizer is SENTENCEPIECE and "▁" in text:
        return  # U+2581 and the space are one token there
    ids = tokenizer.encode(text, add_special=False)
    plain = [number for number in ids if tokenizer.text_bytes[number] or number > 2]
    if len(plain) == len(ids):
        assert tokenizer.decode(ids) == text
