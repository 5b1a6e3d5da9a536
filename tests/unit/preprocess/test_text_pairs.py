"""Pairs of texts as a cross-encoder reads them, and as texts whose vectors are compared."""

import pytest
from msgspec import structs
from tests.support.fake_clock import FakeClock
from tests.support.fake_engine import FakeOptions, fake_info

from headrace.api.embeddings import ScoreRequest
from headrace.config.engine import EngineConfig
from headrace.config.server import ServerConfig
from headrace.core.errors import BadRequestError
from headrace.core.model_info import Task
from headrace.core.pooling import PoolingParams, PoolKind
from headrace.preprocess.gguf_tokenizer import read_gguf_tokenizer
from headrace.preprocess.prepare import Arrival, Preparer
from headrace.preprocess.texts import Pair, compared
from headrace.preprocess.tokenizer import TextTokenizer

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"▁{letter}" for letter in "abcdefgh")]
A, B, C = 4, 5, 6
PAIRS = [Pair("a b", "c", ("text_1", "text_2[0]")), Pair("a b", "a", ("text_1", "text_2[1]"))]
ARRIVAL = Arrival(request_id="score-1", time=1.0)


def preparer(*tasks):
    metadata = {"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": TOKENS}
    tokenizer = TextTokenizer(read_gguf_tokenizer(metadata, "model.gguf"))
    info = structs.replace(fake_info(EngineConfig(), FakeOptions()), tasks=tasks, max_text_tokens=8)
    return Preparer(tokenizer, info, ServerConfig(), FakeClock())


def compare(made, pairs=PAIRS, *, activates=True, **fields):
    wire = ScoreRequest(text_1="", text_2="", **fields)
    return compared(made, pairs, wire, ARRIVAL, activates=activates)


def ids_of(texts):
    return [request.prompt[0].token_ids for request in texts.requests]


@pytest.mark.parametrize("activates", [True, False])
def test_a_cross_encoder_reads_each_pair(activates):
    texts = compare(preparer(Task.SCORE, Task.EMBED), activates=activates)
    assert ids_of(texts) == [[2, A, B, 3, C, 3], [2, A, B, 3, A, 3]]
    assert texts.places == ((0, 0), (1, 1))
    for request in texts.requests:
        assert request.pooling == PoolingParams(PoolKind.SCORES, activates, 0, 4)


def test_other_models_read_each_text_once():
    texts = compare(preparer(Task.EMBED))
    assert ids_of(texts) == [[2, A, B, 3], [2, C, 3], [2, A, 3]]
    assert texts.places == ((0, 1), (0, 2))
    assert all(request.pooling.normalize for request in texts.requests)


def test_a_text_with_itself_is_one_vector():
    texts = compare(preparer(Task.EMBED), [Pair("a", "a", ("text_1", "text_2"))])
    assert texts.places == ((0, 0),)
    assert len(texts.requests) == 1


def test_a_pair_that_is_too_long_names_the_text_or_is_cut_there():
    made = preparer(Task.SCORE)
    pair = Pair("a b", "c d e f g", ("query", "documents[0]"))
    with pytest.raises(BadRequestError, match="up to 8 tokens") as caught:
        compare(made, [pair])
    assert caught.value.param == "documents[0]"
    texts = compare(made, [pair], truncate_prompt_tokens=-1)
    assert ids_of(texts) == [[2, A, B, 3, C, 7, 8, 3]]
    with pytest.raises(BadRequestError) as caught:
        compare(made, [Pair("a b c d e f g", "a", ("query", "documents[0]"))])
    assert caught.value.param == "query"
