import pytest
from tests.support.nasty_text import nasty_strings
from tests.support.tiny_tokenizers import (
    byte_level_metadata,
    byte_level_tokenizer,
    sentencepiece_metadata,
    sentencepiece_tokenizer,
)
from tokenizers import Tokenizer as Core
from tokenizers import decoders, models, pre_tokenizers

from headrace.core.errors import BadRequestError, ModelLoadError, UnsupportedModelError
from headrace.preprocess.gguf_tokenizer import read_gguf_tokenizer
from headrace.preprocess.sentencepiece import merges_from_scores

PIECES = "tokenizer__ggml__tokens"


def tokens_of(metadata, ids):
    return [metadata["tokenizer.ggml.tokens"][number] for number in ids]


def test_byte_level_equals_the_published_smollm_pipeline():
    # SmolLM's own tokenizer.json: single digits, then GPT-2's byte level.
    metadata = byte_level_metadata()
    vocab = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    core = Core(models.BPE(vocab=vocab, merges=merges))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    core.add_tokens(["<tool>"])
    ours = byte_level_tokenizer()
    for text in nasty_strings(600):
        ids = ours.encode(text)
        assert ids == core.encode(text, add_special_tokens=False).ids, repr(text)
        assert ours.decode(ids, skip_special=False) == text


def test_special_tokens_in_text_are_tokens():
    tokenizer = byte_level_tokenizer()
    ids = tokenizer.encode("hello<|im_end|> world<tool>")
    assert tokenizer.decode(ids) == "hello world<tool>"
    assert tokenizer.decode(ids, skip_special=False) == "hello<|im_end|> world<tool>"
    assert tokenizer.id_of("<|im_end|>") in ids
    assert tokenizer.id_of("<tool>") in ids


def test_sentencepiece_merges_by_score_and_falls_back_to_bytes():
    metadata = sentencepiece_metadata()
    tokenizer = sentencepiece_tokenizer()
    assert tokens_of(metadata, tokenizer.encode("hello world")) == ["<s>", "▁hello", "▁world"]
    assert tokens_of(metadata, tokenizer.encode("漢", add_special=False)) == [
        "▁", "<0xE6>", "<0xBC>", "<0xA2>",
    ]  # fmt: skip
    # A space is put in front after a special token as well, as llama.cpp has it.
    ids = tokenizer.encode("he<turn>he", add_special=False)
    assert tokens_of(metadata, ids) == ["▁he", "<turn>", "▁he"]


@pytest.mark.parametrize("adds_space", [True, False])
def test_sentencepiece_round_trips(adds_space):
    tokenizer = sentencepiece_tokenizer(tokenizer__ggml__add_space_prefix=adds_space)
    for text in nasty_strings(500):
        if "▁" in text or any(mark in text for mark in ("<s>", "</s>", "<unk>", "<turn>")):
            continue
        assert tokenizer.decode(tokenizer.encode(text)) == text, repr(text)


def test_text_never_merges_into_a_control_token():
    tokens = ["<unk>", "<x>", "<", "x", ">", "<x", "x>"]
    pairs = merges_from_scores(tokens, [0.0] * 7, excluded=[0, 1])
    assert (5, 4) not in pairs
    assert (2, 6) not in pairs
    assert (2, 3) in pairs


def test_merges_follow_scores_then_ids():
    tokens = ["b", "a", "ab", "ba", "aba"]
    # "aba" has the best score; of its two ways, the parts with the lower ids come first.
    assert merges_from_scores(tokens, [0, 0, -2.0, -3.0, -1.0], excluded=[]) == [
        (1, 3), (2, 1), (1, 0), (0, 1),
    ]  # fmt: skip


def test_facts_come_from_the_metadata():
    facts = byte_level_tokenizer(tokenizer__chat_template__tool_use="tools").facts
    assert (facts.bos_token, facts.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert facts.prefix_ids == ()
    assert facts.eos_token_ids == (0, 2)  # <|endoftext|> and <|im_end|>
    assert facts.chat_templates["tool_use"] == "tools"
    assert "im_start" in facts.chat_templates["default"]
    assert byte_level_tokenizer(tokenizer__ggml__add_bos_token=True).facts.prefix_ids == (1,)
    assert byte_level_tokenizer(tokenizer__ggml__pre="llama-bpe").facts.prefix_ids == ()
    marked = sentencepiece_tokenizer(tokenizer__ggml__add_eos_token=True)
    assert (marked.encode("he")[0], marked.encode("he")[-1]) == (1, 2)


def test_rules_decide_about_bos_where_the_file_does_not():
    metadata = byte_level_metadata(tokenizer__ggml__pre="llama-bpe")
    del metadata["tokenizer.ggml.add_bos_token"]
    assert read_gguf_tokenizer(metadata, "x").facts.prefix_ids == (1,)


def test_sentencepiece_marks_have_ids_where_the_file_names_none():
    metadata = sentencepiece_metadata()
    del metadata["tokenizer.ggml.bos_token_id"], metadata["tokenizer.ggml.eos_token_id"]
    facts = read_gguf_tokenizer(metadata, "x").facts
    assert (facts.bos_token, facts.eos_token, facts.unk_token) == ("<s>", "</s>", "<unk>")


def test_phi3_marks_swallow_the_space_behind_them():
    added = sentencepiece_tokenizer(general__name="Phi-3 mini").facts.added
    assert {token.content: token.rstrip for token in added} == {
        "<unk>": False, "<s>": False, "</s>": True, "<turn>": True,
    }  # fmt: skip


def test_ids_that_mean_none_are_none():
    for value in (-1, 2**32 - 1, "1"):
        assert byte_level_tokenizer(tokenizer__ggml__bos_token_id=value).facts.bos_token is None


@pytest.mark.parametrize(("model", "word"), [("rwkv", "rwkv"), ("t5", "t5"), (7, "7")])
def test_an_unknown_model_is_named(model, word):
    with pytest.raises(UnsupportedModelError, match=f"'{word}' is not known; supported are gpt2"):
        byte_level_tokenizer(tokenizer__ggml__model=model)


def test_an_unknown_pre_tokenizer_is_named():
    with pytest.raises(
        UnsupportedModelError, match=r"'nobody' is not known; supported are .*qwen2"
    ):
        byte_level_tokenizer(tokenizer__ggml__pre="nobody")


@pytest.mark.parametrize(
    "changes",
    [
        {"tokenizer.ggml.model": None},
        {"tokenizer.ggml.tokens": None},
        {"tokenizer.ggml.tokens": []},
        {"tokenizer.ggml.tokens": [1, 2]},
        {"tokenizer.ggml.tokens": "text"},
        {"tokenizer.ggml.token_type": [1, 1]},
        {"tokenizer.ggml.token_type": ["x"]},
        {"tokenizer.ggml.merges": None},
    ],
)
def test_broken_metadata_is_a_load_error(changes):
    metadata = {k: v for k, v in {**byte_level_metadata(), **changes}.items() if v is not None}
    with pytest.raises(ModelLoadError):
        read_gguf_tokenizer(metadata, "broken.gguf")


def test_scores_must_fit_the_vocabulary():
    with pytest.raises(ModelLoadError, match="scores"):
        sentencepiece_tokenizer(tokenizer__ggml__scores=[0.0, 1.0])


def test_merges_that_cannot_apply_are_left_out():
    merges = [*byte_level_metadata()["tokenizer.ggml.merges"], "q zz", "q q", "nospace", ""]
    tokenizer = byte_level_tokenizer(tokenizer__ggml__merges=merges)
    assert tokenizer.encode("qq") == byte_level_tokenizer().encode("qq")


def test_tokens_that_are_empty_or_twice_there_do_no_harm():
    tokens = byte_level_metadata()["tokenizer.ggml.tokens"]
    tokens = [*tokens[:-1], "", "hello"]
    types = [*byte_level_metadata()["tokenizer.ggml.token_type"][:-1], 1, 1]
    tokenizer = byte_level_tokenizer(
        tokenizer__ggml__tokens=tokens, tokenizer__ggml__token_type=types
    )
    assert tokenizer.vocab_size == len(tokens)
    assert tokenizer.decode(tokenizer.encode("hello")) == "hello"


def test_a_surrogate_is_a_bad_request():
    with pytest.raises(BadRequestError, match="surrogate"):
        byte_level_tokenizer().encode("a\ud800b")


def test_ids_outside_the_vocabulary_spell_nothing():
    tokenizer = byte_level_tokenizer()
    assert tokenizer.decode([-1, tokenizer.vocab_size, 2**31]) == ""
