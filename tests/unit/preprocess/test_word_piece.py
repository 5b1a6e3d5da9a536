"""BERT's tokenizer from a directory and from GGUF: the same ids, and text again."""

import json

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from headrace.core.errors import ModelLoadError
from headrace.preprocess.gguf_tokenizer import read_gguf_tokenizer
from headrace.preprocess.tokenizer import TextTokenizer, load_tokenizer

MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    "hello",
    "world",
    "token",
    "##iz",
    "##ation",
    "un",
    "##happy",
    "!",
    ",",
    "the",
    "##the",
    "a",
]
VOCAB = [*MARKS, *WORDS, *"bcdefgh", *(f"##{c}" for c in "abcdefgh")]
TEXTS = ["Hello, world!", "tokenization", "unhappy  the\tabc", "Héllo", "xyz", "[SEP] a [MASK]", ""]


def core():
    made = Tokenizer(models.WordPiece({w: i for i, w in enumerate(VOCAB)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    made.add_special_tokens(MARKS)
    return made


def directory(path):
    made = core()
    made.enable_truncation(4)
    made.enable_padding(length=16)
    made.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"cls_token": "[CLS]"}))
    return load_tokenizer(path, cache=path / "cache")


def gguf(tokens=VOCAB):
    def written(token):
        if token in MARKS:
            return token
        return token[2:] if token.startswith("##") else f"▁{token}"

    metadata = {"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": [*map(written, tokens)]}
    return TextTokenizer(read_gguf_tokenizer(metadata, "model.gguf"))


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_the_library_whatever_it_would_cut_or_fill_up(tmp_path, text):
    expected = core().encode(text).ids
    assert directory(tmp_path).encode(text) == expected
    assert gguf().encode(text) == expected


def test_marks_stand_around_a_text(tmp_path):
    for tokenizer in (directory(tmp_path), gguf()):
        assert tokenizer.facts.prefix_ids == (2,)
        assert tokenizer.facts.suffix_ids == (3,)
        assert tokenizer.facts.eos_token_ids == ()


def test_tokens_are_words_or_their_rests(tmp_path):
    for tokenizer in (directory(tmp_path), gguf()):
        assert (
            tokenizer.decode(tokenizer.encode("unhappy tokenization!")) == "unhappy tokenization !"
        )


def test_case_is_kept_where_the_vocabulary_has_it():
    cased = gguf([*VOCAB, "Hello"])
    assert cased.encode("Hello", add_special=False) == [len(VOCAB)]
    assert gguf().encode("Hello", add_special=False) == [VOCAB.index("hello")]


@pytest.mark.parametrize(
    ("tokens", "sentence"), [(["▁hello"], r"no token \[CLS\]"), ([*MARKS, "▁##a", "a"], "twice")]
)
def test_a_vocabulary_that_cannot_be_one_is_refused(tokens, sentence):
    with pytest.raises(ModelLoadError, match=sentence):
        read_gguf_tokenizer(
            {"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": tokens}, "model.gguf"
        )
