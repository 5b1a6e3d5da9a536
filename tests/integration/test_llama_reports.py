"""What llama.cpp's clients are told, from the real engine: a prompt's progress, and chances after sampling."""

import math
from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from tests.support.engine_run import make_request
from tests.support.real_engine import RealEngine
from tests.support.tiny_models import make_tiny_llama

VOCAB = 333
PROMPT = [number % 300 + 5 for number in range(150)]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    root = tmp_path_factory.mktemp("reports")
    model = make_tiny_llama(root / "model", vocab_size=VOCAB, max_context=512)
    with RealEngine(model, max_num_batched_tokens=64) as running:
        yield running


def progress(engine: RealEngine, name: str, *, wanted: bool) -> list[tuple[int, int]]:
    request = make_request(name, PROMPT, max_tokens=3, n=2)
    events = [*engine.engine.add(replace(request, wants_progress=wanted))]
    while engine.engine.has_work():
        events += engine.engine.step()
    told = [e for e in events if e.num_prompt_computed]
    assert not any(e.token_ids for e in told)
    assert told == events[: len(told)]
    return [(e.num_cached_tokens, e.num_prompt_computed) for e in told]


def test_a_prompt_tells_how_far_it_is_where_that_is_wanted(engine: RealEngine) -> None:
    assert progress(engine, "quiet", wanted=False) == []
    # Most of it is cached now: what is left fits one step.
    assert progress(engine, "cached", wanted=True) == []
    PROMPT[0] = 4
    assert progress(engine, "told", wanted=True) == [(0, 64), (0, 128)]


def test_chances_after_sampling_add_up(engine: RealEngine) -> None:
    wish = {"max_tokens": 8, "logprobs": 5, "post_sampling_probs": True, "seed": 5}
    drawn = engine.run([make_request("few", PROMPT, top_k=3, temperature=1.5, **wish)])["few", 0]
    for entry in drawn.logprobs:
        assert len(entry.top) == 3
        assert math.fsum(math.exp(logprob) for _, logprob in entry.top) == pytest.approx(
            1, abs=1e-5
        )
        assert entry.token_id in [token for token, _ in entry.top]
    sure = engine.run([make_request("one", PROMPT, temperature=0.0, **wish)])["one", 0]
    assert [entry.top for entry in sure.logprobs] == [((t, 0.0),) for t in sure.token_ids]
