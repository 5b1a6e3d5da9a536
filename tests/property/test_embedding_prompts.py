"""Prompts that are partly vectors, some of them alike: every token is right, whatever is shared."""

from dataclasses import replace
from hashlib import sha256

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from tests.support.engine_run import EngineRun
from tests.support.fake_tier import FakeTier
from tests.support.random_load import SHAPES, VOCAB, arrivals, configs, play

from headrace.core.request import EmbeddingSegment, TokenSegment


def vectors(seed: int, count: int) -> EmbeddingSegment:
    """Of size 1."""
    data = bytes([seed]) * 4 * count
    return EmbeddingSegment(sha256(data).digest(), count, data)


SEGMENTS = st.one_of(
    st.builds(TokenSegment, st.lists(st.integers(1, 2), min_size=1, max_size=6)),
    st.builds(vectors, st.integers(0, 1), st.integers(1, 6)),
)


@given(
    load=arrivals(max_size=6),
    config=configs(),
    shape=st.sampled_from(SHAPES),
    prompts=st.lists(st.lists(SEGMENTS, min_size=1, max_size=4), min_size=6, max_size=6),
    has_tier=st.booleans(),
)
@settings(max_examples=80)
def test_vectors_are_computed_and_shared_like_tokens(load, config, shape, prompts, has_tier):
    found = []
    for arrival, prompt in zip(load, prompts, strict=False):
        params = structs.replace(arrival.request.params, prompt_logprobs=None)
        request = structs.replace(arrival.request, prompt=tuple(prompt), params=params)
        found.append(replace(arrival, request=request))
    num_blocks, windows = shape
    tier = FakeTier(delay=lambda load: load.key[0] % 3) if has_tier else None
    run = EngineRun(config, num_blocks=num_blocks, windows=windows, vocab_size=VOCAB, tier=tier)
    play(run, found)
    run.check_empty()
    run.check_tokens()
