import json

import pytest
from tests.support.nasty_text import nasty_strings
from tests.support.tiny_tokenizers import byte_level_metadata, sentencepiece_metadata
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from headrace.core.errors import ModelLoadError, UnsupportedModelError
from headrace.preprocess.directory_tokenizer import read_directory_tokenizer
from headrace.preprocess.tokenizer import TextTokenizer

TEXTS = nasty_strings(500)


def byte_level_core():
    metadata = byte_level_metadata()
    vocab = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"][:-1])}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    core = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    core.add_tokens([AddedToken("<tool>", normalized=False)])
    core.post_processor = TemplateProcessing(
        "<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    return core


def sentencepiece_core(*, legacy):
    metadata = sentencepiece_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    vocab = {token: i for i, token in enumerate(tokens[:-1])}
    merges = [(a, b) for a in tokens for b in tokens if a + b in vocab and len(a + b) > 1]
    merges.sort(key=lambda pair: (vocab[pair[0] + pair[1]], pair))
    core = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    if legacy:
        core.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    else:
        core.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    core.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    core.add_special_tokens(["<unk>", "<s>", "</s>"])
    core.add_special_tokens([AddedToken("<turn>", rstrip=True, normalized=False)])
    return core


def unigram_core():
    pieces = [("<unk>", 0.0), ("▁", -2.0), ("▁hello", -3.0), ("he", -4.0), ("l", -5.0), ("o", -5.0)]
    core = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    core.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always")
    core.decoder = decoders.Metaspace("▁", prepend_scheme="always")
    return core


def save(path, core, **options):
    fast = PreTrainedTokenizerFast(tokenizer_object=core, **options)
    fast.save_pretrained(path)
    return fast


def load(path):
    return TextTokenizer(read_directory_tokenizer(path))


@pytest.mark.parametrize(
    ("build", "strips"),
    [
        (byte_level_core, False),
        (lambda: sentencepiece_core(legacy=True), True),
        (lambda: sentencepiece_core(legacy=False), True),
        (unigram_core, True),
    ],
    ids=["byte-level", "legacy", "metaspace", "unigram"],
)
def test_ids_equal_those_of_transformers(tmp_path, build, strips):
    fast = save(tmp_path, build())
    ours = load(tmp_path)
    assert ours.facts.strips_space is strips
    for text in TEXTS:
        expected = fast(text, add_special_tokens=True)["input_ids"]
        assert ours.encode(text) == expected, repr(text)


@pytest.mark.parametrize("legacy", [True, False])
def test_decoding_equals_the_library_s_where_it_is_text(tmp_path, legacy):
    core = sentencepiece_core(legacy=legacy)
    save(tmp_path, core)
    ours = load(tmp_path)
    for text in TEXTS:
        ids = ours.encode(text)
        assert ours.decode(ids) == core.decode(ids, skip_special_tokens=True), repr(text)


def test_byte_level_decoding_equals_the_library_s_for_any_ids(tmp_path):
    core = byte_level_core()
    save(tmp_path, core)
    ours = load(tmp_path)
    for first in range(0, ours.vocab_size, 3):
        ids = [(first * 7 + step * step * 31) % ours.vocab_size for step in range(20)]
        for skip in (True, False):
            wanted = core.decode(ids, skip_special_tokens=skip)
            assert ours.decode(ids, skip_special=skip) == wanted


def test_marks_come_from_the_post_processor_unless_the_configuration_says_otherwise(tmp_path):
    save(tmp_path, byte_level_core(), bos_token="<|im_start|>", eos_token="<|im_end|>")
    path = tmp_path / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config.pop("add_bos_token", None), config.pop("add_eos_token", None)
    for changes, prefix, suffix in [
        ({}, (1,), ()),
        ({"add_bos_token": False}, (), ()),
        ({"add_bos_token": True, "add_eos_token": True}, (1,), (2,)),
    ]:
        path.write_text(json.dumps(config | changes))
        facts = load(tmp_path).facts
        assert (facts.prefix_ids, facts.suffix_ids) == (prefix, suffix)


def test_ends_come_from_every_file_that_names_one(tmp_path):
    save(
        tmp_path, byte_level_core(), eos_token={"content": "<|im_end|>", "special": True}["content"]
    )
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [0, 7]}')
    (tmp_path / "config.json").write_text('{"eos_token_id": 9}')
    assert load(tmp_path).facts.eos_token_ids == (0, 2, 7, 9)


def test_templates_come_from_every_place(tmp_path):
    save(tmp_path, byte_level_core())
    path = tmp_path / "tokenizer_config.json"
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}, 3]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": named}))
    assert load(tmp_path).facts.chat_templates == {"default": "a", "tool_use": "b"}
    (tmp_path / "chat_template.json").write_text('{"chat_template": "c"}')
    assert load(tmp_path).facts.chat_templates["default"] == "c"
    (tmp_path / "chat_template.jinja").write_text("d")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates/rag.jinja").write_text("e")
    assert load(tmp_path).facts.chat_templates == {"default": "d", "tool_use": "b", "rag": "e"}


def test_a_directory_without_tokenizer_json_is_an_error_that_says_so(tmp_path):
    with pytest.raises(ModelLoadError, match=r"no tokenizer\.json"):
        load(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": {}}', '{"version": "9"}'])
def test_a_broken_tokenizer_json_is_a_load_error(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelLoadError):
        load(tmp_path)


@pytest.mark.parametrize("content", [b"\xff", b'{"a": "\\ud800"}', b"[]", b"{", b"[" * 100_000])
@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json"])
def test_a_broken_file_beside_it_is_a_load_error(tmp_path, name, content):
    save(tmp_path, byte_level_core())
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelLoadError, match=name):
        load(tmp_path)


def test_a_template_that_is_no_text_is_a_load_error(tmp_path):
    save(tmp_path, byte_level_core())
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelLoadError, match=r"chat_template\.jinja"):
        load(tmp_path)


def test_numbers_that_are_not_finite_do_no_harm(tmp_path):
    save(tmp_path, byte_level_core())
    (tmp_path / "generation_config.json").write_text('{"temperature": NaN, "eos_token_id": 7}')
    assert 7 in load(tmp_path).facts.eos_token_ids


def test_an_unknown_decoder_is_named(tmp_path):
    core = byte_level_core()
    core.decoder = decoders.CTC()
    save(tmp_path, core)
    with pytest.raises(UnsupportedModelError, match="CTC"):
        load(tmp_path)
