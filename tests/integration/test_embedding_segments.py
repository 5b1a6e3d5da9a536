"""Prompts that are partly vectors: those of the model's own tokens give what the tokens give, to the bit."""

import random
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from tests.support.engine_run import make_request
from tests.support.op_run import NO_KEYS, Batch
from tests.support.real_engine import RealEngine
from tests.support.tiny_gemma import make_tiny_gemma
from tests.support.tiny_models import make_tiny_llama

from headrace.core.request import TokenSegment, embedding_segment
from headrace.kernels.dispatch import create_backend
from headrace.kernels.values import Rows, StepLimits
from headrace.llm import LLM
from headrace.modeling.decoder import _DecoderParts
from headrace.modeling.registry import describe
from headrace.modeling.weights.checkpoint import open_checkpoint
from headrace.modeling.weights.load import load_parameters

rng = random.Random(4)
PROMPT = [rng.randrange(3, 300) for _ in range(90)]
CASES = {
    "llama": (make_tiny_llama, None),
    "llama-int4": (make_tiny_llama, "int4"),
    "gemma": (make_tiny_gemma, None),
}


def embeddings_of(path: Path, quantize: str | None, token_ids: list[int]) -> np.ndarray:
    """What the model's first layer takes for these tokens."""
    checkpoint = open_checkpoint(path)
    spec, parameters = describe(checkpoint)
    backend = create_backend("cpu", isa="auto", threads=1)
    weights = load_parameters(
        checkpoint, parameters, quantize=quantize, cache=None, isa=backend.isa
    )
    count = len(token_ids)
    cache = backend.create_kv_cache(NO_KEYS)
    recorder = backend.recorder(StepLimits(count, 1), cache)
    out = recorder.buffer(Rows.TOKENS, spec.hidden_size)
    table = _DecoderParts(backend, spec, weights, None).linear("embed").table
    recorder.embed(table, out, scale=spec.embedding_scale)
    program = recorder.finish()
    inputs = Batch((count,), (0,), (np.zeros((1, 99), np.int32),)).step_inputs()
    inputs.token_ids = np.array(token_ids, np.int32)
    program.run(inputs)
    return np.array(program.read(out, count))


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    """A model, how it is quantised, the vectors of PROMPT, and what its tokens give."""
    make, quantize = CASES[request.param]
    model = make(tmp_path_factory.mktemp("model"))
    with RealEngine(model, quantize=quantize) as engine:
        said = engine.run([probe()])["probe", 0]
    return model, quantize, embeddings_of(model, quantize, PROMPT), said


def probe(*segments, **fields):
    request = make_request(
        "probe", PROMPT, max_tokens=20, seed=3, logprobs=3, temperature=0.7, **fields
    )
    return replace(request, prompt=segments) if segments else request


def given(vectors, first, last):
    return embedding_segment(vectors[first:last].astype("<f4").tobytes(), last - first)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_batched_tokens": 7},
        {"max_num_batched_tokens": 1},
        {"max_uncommitted_plans": 2, "threads": 2},
    ],
    ids=["whole", "chunks", "single", "overlap"],
)
@pytest.mark.parametrize(
    "cuts", [(0, 90), (20, 55), (70, 90)], ids=["all", "in the middle", "at the end"]
)
def test_vectors_of_tokens_give_what_the_tokens_give(case, settings, cuts):
    model, quantize, vectors, said = case
    first, last = cuts
    segments = [
        TokenSegment(PROMPT[:first]),
        given(vectors, first, last),
        TokenSegment(PROMPT[last:]),
    ]
    other = make_request("other", PROMPT[::-1], max_tokens=9)
    with RealEngine(model, quantize=quantize, **settings) as engine:
        request = probe(*(s for s in segments if getattr(s, "token_ids", True)))
        assert engine.run([request, other])["probe", 0] == said


def test_equal_vectors_are_a_prefix_hit_and_others_are_not(case):
    model, quantize, vectors, said = case
    tokens = TokenSegment(PROMPT[64:])
    with RealEngine(model, quantize=quantize) as engine:
        first = engine.run([probe(given(vectors, 0, 64), tokens)])["probe", 0]
        again = engine.run([probe(given(vectors, 0, 64), tokens)])["probe", 0]
        assert (first, again) == (said, said)
        assert (first.num_cached, again.num_cached) == (0, 80)
        moved = vectors.copy()
        moved[3, 1] += 0.5
        other = engine.run([probe(given(moved, 0, 64), tokens)])["probe", 0]
        assert other.num_cached == 0
        assert other != said
        assert engine.run([probe()])["probe", 0].num_cached == 0  # ids have names of their own


def test_a_vector_at_the_end_of_a_slots_next_prompt_is_seen(case):
    """The step of one row that looks like the one before, but is another sequence's last prompt position."""
    model, quantize, vectors, _ = case
    full = probe(TokenSegment(PROMPT[:80]), given(vectors, 80, 81))
    with RealEngine(model, quantize=quantize) as engine:
        alone = engine.run([full])["probe", 0]
    with RealEngine(model, quantize=quantize, max_num_seqs=1) as engine:
        engine.run([make_request("warm", PROMPT[:81], max_tokens=8)])
        found = engine.run([full])["probe", 0]
        assert found == alone
        assert found.num_cached == 80


def test_llm_takes_vectors(case):
    model, quantize, vectors, _ = case
    with LLM(str(model), cache_packed=False, threads=1, quantize=quantize) as llm:
        plain = llm.generate([PROMPT], max_tokens=8, temperature=0)[0]
        mixed = llm.generate_from(
            [TokenSegment(PROMPT[:10]), given(vectors, 10, 90)], max_tokens=8, temperature=0
        )
        assert mixed.token_ids == plain.token_ids
        with pytest.raises(Exception, match="float32"):
            llm.generate_from([embedding_segment(b"\0" * 12, 1)], max_tokens=8)
