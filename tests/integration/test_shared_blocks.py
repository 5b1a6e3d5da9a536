"""The answers of one request share the blocks of its prompt: counts of n, best_of and beams, as the page on paging shows them."""

import re
from pathlib import Path

import pytest
from tests.support.real_engine import RealEngine
from tests.support.tiny_models import make_tiny_llama

from headrace.api.completions import CompletionRequest
from headrace.config.server import ServerConfig
from headrace.core.clock import SystemClock
from headrace.preprocess.load import load_text
from headrace.preprocess.prepare import Arrival

PAGE = (Path(__file__).parents[2] / "docs" / "concepts" / "paging.md").read_text()
#: Six blocks of 16 and a quarter of one; with its answer, eight.
PROMPT, ANSWER, ANSWERS = 100, 20, 4


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """An engine that finds nothing in a cache, so that all sharing is within a request."""
    path = make_tiny_llama(tmp_path_factory.mktemp("model") / "tiny")
    with RealEngine(path, isa="generic", prefix_cache=False) as engine:
        clock = SystemClock()
        yield engine, load_text(path).preparer(engine.built.info, ServerConfig(), clock)


def peak(served, name, bodies):
    """Most blocks that are held while requests run, and how many sequences they are."""
    engine, preparer = served
    num_sequences = 0
    for number, body in enumerate(bodies):
        prompt = [40 + (number + i) % 200 for i in range(PROMPT)]
        wire = CompletionRequest(prompt=prompt, max_tokens=ANSWER, ignore_eos=True, **body)
        for request in preparer.completion(
            wire, Arrival(request_id=f"{name}{number}", time=engine.clock.monotonic())
        ):
            num_sequences += request.n
            engine.add(request)
    most = 0
    while engine.engine.has_work():
        engine.step()
        most = max(most, engine.stats.blocks_held)
    engine.finish()
    return most, num_sequences


def test_counts_are_those_of_the_page(served):
    found = {
        "four requests": peak(served, "apart", [{}] * ANSWERS),
        "`n: 4`": peak(served, "n", [{"n": ANSWERS}]),
        "`best_of: 4`": peak(served, "best", [{"best_of": ANSWERS}]),
        "four beams, which part late": peak(served, "beams", [{"beam_width": ANSWERS}]),
    }
    rows = re.findall(r"^\| ([^|]+) \| (\d+) \|$", PAGE, re.MULTILINE)
    assert {name: blocks for name, (blocks, _) in found.items()} == {
        name.strip(): int(blocks) for name, blocks in rows
    }
    whole = -(-(PROMPT + ANSWER) // 16)
    assert found["four requests"] == (ANSWERS * whole, ANSWERS)
    # The full blocks of the prompt once, and for each answer the rest of its own.
    assert found["`n: 4`"][0] == PROMPT // 16 + ANSWERS * (whole - PROMPT // 16)
    assert found["`best_of: 4`"] == found["`n: 4`"]
    beams, _ = found["four beams, which part late"]
    assert whole < beams <= found["`n: 4`"][0]
