"""The penalty for repetition: what a request says, as the engine has it."""

import pytest
from tests.support.preparing import ARRIVAL, completion, preparer
from tests.support.tiny_tokenizers import byte_level_tokenizer

from headrace.core.errors import BadRequestError
from headrace.preprocess.dry import DEFAULT_BREAKERS
from headrace.preprocess.token_search import TokenSearch


def dry_of(**fields):
    return preparer().completion(completion("a", **fields), ARRIVAL)[0].params.dry


def test_nothing_is_penalised_unless_asked_for():
    assert dry_of() is None
    assert dry_of(dry_multiplier=0.0, dry_base=2.0, dry_sequence_breakers=["x"]) is None
    assert dry_of(dry_multiplier=1.0, dry_penalty_last_n=0) is None


def test_the_defaults_are_llama_cpps():
    dry = dry_of(dry_multiplier=0.8)
    assert (dry.multiplier, dry.base, dry.allowed_length) == (0.8, 1.75, 2)
    assert dry.window > 10**9
    tokenizer = byte_level_tokenizer()
    wanted = {t for t in range(275) for text in DEFAULT_BREAKERS if text in tokenizer.decode([t])}
    assert set(dry.breakers) == wanted


def test_everything_that_is_asked_for_arrives():
    dry = dry_of(
        dry_multiplier=2, dry_base=3, dry_allowed_length=4, dry_penalty_last_n=50,
        dry_sequence_breakers=[],
    )  # fmt: skip
    assert (dry.multiplier, dry.base, dry.allowed_length, dry.window) == (2, 3, 4, 50)
    assert (dry.breakers, dry.breaker_words) == ((), ())
    assert dry_of(dry_multiplier=2, dry_base=0.5).base == 1.75


def test_a_long_breaker_is_several_tokens():
    tokenizer = byte_level_tokenizer()
    dry = dry_of(dry_multiplier=1, dry_sequence_breakers=["Q#:Z"])
    assert dry.breakers == ()
    assert {tokenizer.decode(ids).strip() for ids in dry.breaker_words} == {"Q#:Z"}
    assert all(len(ids) > 1 for ids in dry.breaker_words)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"dry_multiplier": float("nan")}, "dry_multiplier"),
        ({"dry_multiplier": 101.0}, "dry_multiplier"),
        ({"dry_base": float("inf")}, "dry_base"),
        ({"dry_allowed_length": 0}, "dry_allowed_length"),
        ({"dry_penalty_last_n": -2}, "dry_penalty_last_n"),
        ({"dry_sequence_breakers": ["a", ""]}, "dry_sequence_breakers[1]"),
        ({"dry_sequence_breakers": ["a" * 65]}, "dry_sequence_breakers[0]"),
        ({"dry_sequence_breakers": ["a"] * 65}, "dry_sequence_breakers"),
    ],
)
def test_what_is_wrong_is_named(fields, param):
    from msgspec.structs import replace

    request = replace(completion("a"), **fields)  # as `headrace.LLM` may hand it in
    with pytest.raises(BadRequestError) as caught:
        preparer().completion(request, ARRIVAL)
    assert caught.value.param == param


def test_the_search_finds_what_looking_at_each_token_finds():
    spelt = [b"", b"ab", b"b", b"aab", b"", b"ba", b"a", b"abab", b"\xff\n", b"\n\n"]
    search = TokenSearch(spelt)
    for text in (b"a", b"b", b"ab", b"ba", b"aba", b"\n", b"\n\n", b"bb", b"\xff", b"nothing"):
        wanted = tuple(i for i, token in enumerate(spelt) if text in token)
        assert search.holding(text) == search.holding(text) == wanted
