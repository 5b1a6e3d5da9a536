"""Grammars in the real engine: whatever happens to a sequence, its answer stays in its language."""

import json
import re

import pytest
from tests.support.real_engine import RealEngine
from tests.support.tiny_models import make_tiny_llama

from headrace.core.events import FinishReason
from headrace.core.grammar import Grammar, GrammarKind
from headrace.core.request import Request, TokenSegment
from headrace.core.sampling import SamplingParams
from headrace.preprocess.tokenizer import load_tokenizer

END = 2
REGEX = Grammar(GrammarKind.REGEX, "([a-z]{2,5} ){3,9}[0-9]+!")
JSON = Grammar(
    GrammarKind.JSON_SCHEMA,
    json.dumps(
        {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "minimum": 0, "maximum": 99},
                "b": {"type": "string", "maxLength": 6},
                "c": {"type": "array", "items": {"enum": ["x", "yy"]}, "maxItems": 3},
            },
            "required": ["a", "b", "c"],
            "additionalProperties": False,
        }
    ),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("model") / "tiny", dtype="f32")


@pytest.fixture(scope="module")
def tokenizer(model):
    return load_tokenizer(model)


def request(name, grammar, *, prompt=(70, 80, 90), n=1, prior=(), seed=5, eos=(END,), **params):
    values = {"max_tokens": 120, "temperature": 1.0, "seed": seed, **params}
    return Request(
        request_id=name,
        prompt=(TokenSegment(list(prompt)),),
        params=SamplingParams(**values),
        eos_token_ids=eos,
        n=n,
        prior_output_ids=list(prior),
        grammar=grammar,
    )


def crowd():
    """Two kinds of grammar, and free text, in several sequences each."""
    return [
        request(f"r{i}", (REGEX, JSON, None)[i % 3], prompt=range(40, 50 + 9 * i), n=2, seed=i)
        for i in range(6)
    ]


def run(model, requests, **options):
    with RealEngine(model, **options) as engine:
        return engine.run(requests)


@pytest.fixture(scope="module")
def plain(model):
    return run(model, crowd())


def check(said, grammar, tokenizer):
    text = tokenizer.decode(said.token_ids)
    assert said.finish is FinishReason.STOP
    if grammar is REGEX:
        assert re.fullmatch(REGEX.text, text)
    else:
        assert set(json.loads(text)) == {"a", "b", "c"}


def test_every_answer_is_in_its_language(plain, tokenizer):
    for r in crowd():
        for index in range(2):
            if r.grammar is not None:
                check(plain[r.request_id, index], r.grammar, tokenizer)


@pytest.mark.parametrize(
    "options",
    [
        {"max_uncommitted_plans": 2},
        {"max_num_seqs": 3},
        {"max_num_batched_tokens": 16},
        {"threads": 2},
    ],
    ids=str,
)
def test_the_tokens_do_not_depend_on_the_way_there(model, plain, options):
    assert run(model, crowd(), **options) == plain


def test_preempted_answers_go_on_where_they_were(model, plain):
    with RealEngine(model, kv_memory="96K", prefix_cache=False) as engine:
        said = engine.run(crowd())
        assert engine.stats.preemptions > 0
    assert said == plain


@pytest.mark.parametrize("grammar", [REGEX, JSON])
def test_another_replica_continues_an_answer(model, grammar):
    whole = run(model, [request("r", grammar)])["r", 0]
    for count in (1, 4, len(whole.token_ids) - 1):
        rest = run(model, [request("r", grammar, prior=whole.token_ids[:count])])["r", 0]
        assert rest == whole.after(count)


def test_a_complete_answer_ends_without_an_end_token(model, tokenizer):
    said = run(model, [request("r", Grammar(GrammarKind.LARK, 'start: "yes" | "no"'))])["r", 0]
    assert tokenizer.decode(said.token_ids) in ("yes", "no")
    assert said.finish is FinishReason.STOP
    assert END not in said.token_ids


def test_a_model_without_an_end_token_ends_too(model, tokenizer):
    said = run(model, [request("r", REGEX, eos=())])["r", 0]
    check(said, REGEX, tokenizer)


def test_the_end_is_allowed_only_where_the_grammar_accepts(model, tokenizer):
    grammar = Grammar(GrammarKind.REGEX, "(ab)*")
    bias = {END: 100.0}
    never = Grammar(GrammarKind.REGEX, "(ab){2}c*")
    said = run(
        model,
        [request("r", grammar, logit_bias=bias), request("s", never, logit_bias=bias)],
    )
    assert said["r", 0].token_ids == [END]
    assert tokenizer.decode(said["s", 0].token_ids) == "abab"


def test_a_minimum_length_holds_while_the_grammar_can_go_on(model, tokenizer):
    bias = {END: 100.0}
    free = request("r", Grammar(GrammarKind.REGEX, "a*"), min_tokens=7, logit_bias=bias)
    short = request("s", Grammar(GrammarKind.REGEX, "aa"), min_tokens=7, logit_bias=bias)
    said = run(model, [free, short])
    assert said["r", 0].token_ids.index(END) == 7
    assert tokenizer.decode(said["s", 0].token_ids) == "aa"
    assert said["s", 0].finish is FinishReason.STOP


def test_a_bias_steers_among_what_is_allowed(model, tokenizer):
    letter = tokenizer.encode("q")[0]
    biased = request("r", Grammar(GrammarKind.REGEX, "[a-z]{4}"), logit_bias={letter: 100.0})
    assert tokenizer.decode(run(model, [biased])["r", 0].token_ids) == "qqqq"


def test_max_tokens_cuts_an_answer_short(model):
    said = run(model, [request("r", REGEX, max_tokens=5)])["r", 0]
    assert said.finish is FinishReason.LENGTH
    assert len(said.token_ids) == 5


@pytest.mark.parametrize(
    ("grammar", "prior"),
    [
        (Grammar(GrammarKind.REGEX, "("), ()),
        (Grammar(GrammarKind.JSON_SCHEMA, '{"type": 5}'), ()),
        (REGEX, (3,)),  # an earlier output that the grammar does not allow
    ],
)
def test_a_grammar_without_a_way_on_ends_its_answer_alone(model, tokenizer, grammar, prior):
    with RealEngine(model) as engine:
        engine.add(request("good", JSON))
        events = engine.engine.add(request("bad", grammar, prior=prior))
        while not any(e.request_id == "bad" for e in events):
            engine.step_keeping(events)
        bad = next(e for e in events if e.request_id == "bad")
        assert bad.finish is FinishReason.ERROR
        assert bad.error_kind == "GrammarError"
        check(engine.finish()["good", 0], JSON, tokenizer)


def test_a_request_may_be_cancelled_while_its_grammar_is_compiled(model, tokenizer):
    with RealEngine(model) as engine:
        for name in ("r", "s", "t"):
            engine.add(request(name, Grammar(GrammarKind.REGEX, f"{name}[a-z]{{3}}"), n=2))
        engine.cancel("s")
        said = engine.finish()
        assert said["s", 0].finish is FinishReason.CANCELLED
        assert tokenizer.decode(said["t", 1].token_ids)[0] == "t"
