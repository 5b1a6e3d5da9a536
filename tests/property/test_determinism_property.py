"""Any request says alone what it says in any company, chunks, memory and overlap, to the last bit.

Real kernels on a tiny model; grammars, and every way of choosing tokens.
"""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.engine_run import make_request
from tests.support.real_engine import RealEngine
from tests.support.tiny_models import make_tiny_llama

from headrace.core.grammar import Grammar, GrammarKind
from headrace.core.request import Request
from headrace.core.sampling import Dry
from headrace.engine.scheduler.sequence import derive_seed

VOCAB = 320
END = 2
#: Tokens of a prompt and of an answer; 5 blocks of 16 hold the two.
MAX_PROMPT, MAX_ANSWER = 60, 20
#: 8 blocks of 4 KiB: one request always fits, two hardly ever.
TIGHT = "32KiB"
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yy"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
GRAMMARS = (
    Grammar(GrammarKind.REGEX, "([a-z]{2,5} ){1,9}[0-9]+!"),
    Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)),
)

#: What thins out the tokens that may be drawn; each may be combined with each.
FILTERS = {
    "top_k": st.integers(1, 40),
    "top_p": st.sampled_from([0.3, 0.8, 0.95]),
    "min_p": st.sampled_from([0.01, 0.2]),
    "typical_p": st.sampled_from([0.2, 0.7, 0.95]),
    "top_n_sigma": st.sampled_from([0.5, 1.0, 3.0]),
}
PENALTIES = {
    "presence_penalty": st.sampled_from([-0.5, 0.7]),
    "frequency_penalty": st.sampled_from([0.4, 1.5]),
    "repetition_penalty": st.sampled_from([0.8, 1.3]),
    "dry": st.builds(
        Dry,
        multiplier=st.sampled_from([0.8, 3.0]),
        base=st.just(1.75),
        allowed_length=st.integers(1, 3),
        window=st.sampled_from([8, 100]),
        breakers=st.sampled_from([(), (13, 20)]),
    ),
}
#: Bounds that would come to a dead end with some grammars.
BOUNDS = {
    "allowed_token_ids": st.sampled_from([tuple(range(3, 90)), tuple(range(40, 300, 3))]),
    "bad_words": st.lists(
        st.lists(st.integers(3, 60), min_size=1, max_size=3).map(tuple), min_size=1, max_size=8
    ).map(tuple),
    "min_tokens": st.integers(1, MAX_ANSWER),
    "logit_bias": st.sampled_from([{2: 5.0, 40: 3.0}, {41: -100.0}]),
}


@st.composite
def requests(draw: st.DrawFn, name: str) -> Request:
    """One request of any kind; `name` is its id."""
    grammar = draw(st.sampled_from([None, None, *GRAMMARS]))
    optional = {**FILTERS, **PENALTIES, **({} if grammar else BOUNDS)}
    params = draw(st.fixed_dictionaries({}, optional=optional))
    params["temperature"] = draw(st.sampled_from([0.0, 0.7, 1.0, 1.6]))
    if draw(st.booleans()):
        params |= {"xtc_probability": draw(st.sampled_from([0.3, 1.0])), "xtc_threshold": 0.02}
    made = make_request(
        name,
        draw(st.lists(st.integers(3, VOCAB - 1), min_size=1, max_size=MAX_PROMPT)),
        max_tokens=draw(st.integers(1, MAX_ANSWER)),
        seed=draw(st.integers(0, 2**63 - 1)),
        eos=(END,),
        n=draw(st.sampled_from([1, 1, 1, 2])),
        priority=draw(st.sampled_from([0, 0, 1])),
        logprobs=draw(st.sampled_from([0, 3])),
        **params,
    )
    return Request(
        **{name: getattr(made, name) for name in made.__struct_fields__} | {"grammar": grammar}
    )


@st.composite
def loads(draw: st.DrawFn) -> list[tuple[int, Request]]:
    """Requests, and how many steps each comes after the one before."""
    count = draw(st.integers(2, 5))
    return [(draw(st.integers(0, 4)), draw(requests(f"r{number}"))) for number in range(count)]


CONFIGS = st.fixed_dictionaries(
    {
        "max_num_batched_tokens": st.sampled_from([5, 17, 64, 512]),
        "max_num_seqs": st.sampled_from([3, 16]),
        "max_uncommitted_plans": st.sampled_from([1, 2]),
        "prefix_cache": st.booleans(),
        "kv_memory": st.sampled_from([TIGHT, "auto"]),
        "threads": st.sampled_from([1, 2]),
    }
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("model") / "tiny", vocab_size=VOCAB)


@pytest.fixture(scope="module")
def alone(model: Path):
    """An engine for one request at a time, whole prompts, without a prefix cache."""
    with RealEngine(model, prefix_cache=False, chunked_prefill=False) as engine:
        yield engine


def check(alone: RealEngine, request: Request, found: object) -> None:
    """Each of its answers is what a request with that answer's seed says alone."""
    for index in range(request.n):
        fields = {name: getattr(request, name) for name in request.__struct_fields__}
        params = {n: getattr(request.params, n) for n in request.params.__struct_fields__}
        params["seed"] = derive_seed(request.params.seed, index)
        single = Request(
            **fields | {"n": 1, "params": type(request.params)(**params), "request_id": "alone"}
        )
        assert found[request.request_id, index] == alone.run([single])["alone", 0], request


@given(load=loads(), config=CONFIGS)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
def test_company_changes_nothing(model, alone, load, config):
    with RealEngine(model, **config) as engine:
        for steps, request in load:
            for _ in range(steps):
                if engine.engine.has_work():
                    engine.step()
            engine.add(request)
        found = engine.finish()
    for _, request in load:
        check(alone, request, found)


def test_sequences_that_are_pushed_out_go_on_where_they_were(model, alone):
    """Every way of choosing, once each, in memory for two of nine."""
    ways = (
        {"xtc_probability": 0.7, "xtc_threshold": 0.02},
        {"typical_p": 0.6},
        {"top_n_sigma": 1.0},
        {"bad_words": ((7, 8), (9,), (30,))},
        {"allowed_token_ids": tuple(range(3, 90))},
        {"dry": Dry(multiplier=2.0, base=1.5, allowed_length=1, window=50)},
        {"temperature": 0.0, "repetition_penalty": 1.2},
    )
    wanted = [
        make_request(
            f"way {i}", list(range(10 + i, 52 + i)), max_tokens=30, seed=i, logprobs=2, **way
        )
        for i, way in enumerate(ways)
    ]
    for i, grammar in enumerate(GRAMMARS):
        made = make_request(
            f"grammar {i}", list(range(80 + i, 110)), max_tokens=30, seed=i, logprobs=2, eos=(END,)
        )
        fields = {name: getattr(made, name) for name in made.__struct_fields__}
        wanted.append(Request(**fields | {"grammar": grammar}))
    with RealEngine(model, kv_memory="48KiB", max_num_batched_tokens=32) as engine:
        for request in wanted:
            engine.add(request)
        for number in range(10):
            engine.step()
            prompt = list(range(number + 5, number + 20))
            engine.add(make_request(f"urgent {number}", prompt, max_tokens=20, priority=-1))
        found = engine.finish()
        assert engine.stats.preemptions >= len(wanted) // 2
    for request in wanted:
        check(alone, request, found)
