"""Our tokens are llama.cpp's tokens, on the real models."""

import unicodedata

import pytest
from tests.support.chat_templates import SMOLLM2
from tests.support.fake_clock import FakeClock
from tests.support.llama_server import llama_server
from tests.support.nasty_text import nasty_strings

from headrace.core.errors import BadRequestError
from headrace.modeling.weights.sources import resolve
from headrace.preprocess.spelling import BYTE_ALPHABET
from headrace.preprocess.templates import ChatTemplates
from headrace.preprocess.tokenizer import load_tokenizer
from headrace.preprocess.tokenizer_data import Spelling

MODELS = ("smollm2-135m", "gemma-3-270m")


@pytest.fixture(scope="module", params=MODELS)
def pair(request, tmp_path_factory):
    """Our tokenizer (from its cached form) and llama.cpp's server, on one file."""
    path = resolve(request.param, progress=False)
    cache = tmp_path_factory.mktemp("tokenizers")
    load_tokenizer(path, cache=cache)
    with llama_server(path) as server:
        yield load_tokenizer(path, cache=cache), server


def has_unassigned(text):
    """Code points without a character, which llama.cpp's hand-written splitter takes for separators
    where the models' own patterns take them for symbols. Our tokens are those of the patterns."""
    return any(unicodedata.category(character) == "Cn" for character in text)


def test_tokens_equal_llama_cpp(pair):
    tokenizer, server = pair
    strings = [text for text in nasty_strings(1100) if not has_unassigned(text)]
    assert len(strings) >= 700
    different = [
        text
        for text in strings
        if tokenizer.encode(text, add_special=False) != server.tokenize(text)
    ]
    assert different == []


def test_special_marks_equal_llama_cpp(pair):
    tokenizer, server = pair
    for text in ("", "Hello", " Hello\n"):
        assert tokenizer.encode(text) == server.tokenize(text, add_special=True)


def test_text_comes_back(pair):
    tokenizer, _ = pair
    if tokenizer.facts.spelling is Spelling.BYTE_LEVEL:
        # SmolLM2 has no token for some bytes of planes that nobody uses; they vanish, as everywhere.
        lost = {byte for letter, byte in BYTE_ALPHABET.items() if tokenizer.id_of(letter) is None}
        texts = [text for text in nasty_strings(1100) if not lost & set(text.encode())]
    else:
        texts = [text for text in nasty_strings(1100) if "▁" not in text]  # the space's own token
    assert len(texts) >= 900
    for text in texts:
        ids = tokenizer.encode(text, add_special=False)
        assert tokenizer.decode(ids, skip_special=False) == text


def test_the_model_s_template_renders_as_llama_cpp_renders_it(pair):
    tokenizer, server = pair
    templates = ChatTemplates(tokenizer, None, FakeClock())
    if not tokenizer.facts.chat_templates:
        with pytest.raises(BadRequestError, match="no chat template"):
            templates.find(with_tools=False)
        return
    assert tokenizer.facts.chat_templates["default"] == SMOLLM2
    template = templates.find(with_tools=False)
    for messages in (
        [{"role": "user", "content": "Hi"}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " 漢字\n😀 "}],
        [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ],
    ):
        assert template.render(messages) == server.render(messages)
