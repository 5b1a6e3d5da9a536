"""The KV policy `evict` on real kernels: bitwise the same tokens, within a bounded number of blocks."""

import random

import pytest
from msgspec.structs import replace
from tests.support.engine_run import make_request
from tests.support.real_engine import RealEngine
from tests.support.tiny_gemma import make_tiny_gemma
from tests.support.tiny_models import make_tiny_llama

from headrace.core.request import KVPolicy, KVPolicyKind

EVICT = KVPolicy(KVPolicyKind.EVICT, num_sinks=4, window=64)
CASES = {
    "llama-f16": (make_tiny_llama, "f16"),
    "llama-int8": (make_tiny_llama, "int8"),
    "gemma-bf16": (make_tiny_gemma, "bf16"),
}
rng = random.Random(21)
PROMPT = [rng.randrange(3, 300) for _ in range(171)]


def probe(name="probe", policy=EVICT, **params):
    params = {"max_tokens": 60, "seed": 5, "logprobs": 2, "temperature": 0.8, **params}
    return make_request(name, PROMPT, kv_policy=policy, **params)


def others(count=5):
    return [
        make_request(
            f"o{number}",
            [rng.randrange(3, 300) for _ in range(40 + 31 * number)],
            max_tokens=30,
            seed=number,
            kv_policy=EVICT if number % 2 else KVPolicy(),
        )
        for number in range(count)
    ]


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    """A model, its KV dtype, and what the probe says alone, in one chunk."""
    make, dtype = CASES[request.param]
    model = make(tmp_path_factory.mktemp("model"))
    with RealEngine(model, kv_dtype=dtype, prefix_cache=False) as engine:
        return model, dtype, engine.run([probe()])["probe", 0]


def said(case, requests, warm=(), **settings):
    model, dtype, _ = case
    with RealEngine(model, kv_dtype=dtype, **settings) as engine:
        engine.run(warm)
        return engine.run(requests)["probe", 0], engine.stats


def test_what_is_evicted_makes_a_difference(case):
    full, _ = said(case, [probe(policy=KVPolicy())])
    assert full.token_ids[0] == case[2].token_ids[0]  # the prompt sees all of itself
    assert full.logprobs != case[2].logprobs


def test_a_budget_that_is_never_reached_changes_nothing(case):
    roomy = replace(EVICT, window=400)
    full, _ = said(case, [probe(policy=KVPolicy())])
    assert said(case, [probe(policy=roomy)])[0] == full


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_batched_tokens": 23},
        {"threads": 2, "max_uncommitted_plans": 2},
        {"max_num_batched_tokens": 48, "max_uncommitted_plans": 3, "threads": 2},
    ],
    ids=["chunks", "overlap", "both"],
)
def test_company_and_chunks_change_nothing(case, settings):
    assert said(case, [*others(), probe(), probe("twin")], **settings)[0] == case[2]


def test_a_prefix_hit_ends_where_observation_begins(case):
    found, _ = said(case, [probe()], warm=[probe("warm", policy=KVPolicy())])
    assert found == case[2]
    assert found.num_cached == (171 - 32) // 16 * 16


def test_after_preemption_it_is_computed_as_it_was(case):
    model, dtype, alone = case
    with RealEngine(model, kv_dtype=dtype, max_num_seqs=4, max_num_batched_tokens=64) as engine:
        engine.add(probe())
        while len(engine._said["probe", 0].token_ids) < 40:
            engine.step()
        roster = engine.engine._scheduler._roster
        roster.preempt(roster.running[0], engine.clock.monotonic())
        assert engine.finish()["probe", 0] == alone


def test_another_replica_goes_on_with_the_same_tokens(case):
    alone = case[2]
    going_on = replace(probe(), prior_output_ids=alone.token_ids[:37])
    assert said(case, [going_on])[0] == alone.after(37)


def test_memory_stays_within_the_budget(case):
    model, dtype, _ = case
    with RealEngine(model, kv_dtype=dtype, prefix_cache=False) as engine:
        engine.add(probe(max_tokens=120, ignore_eos=True))
        while not engine._said["probe", 0].token_ids:
            engine.step()
        pool = engine.engine._scheduler._ledger._pools[
            engine.engine._scheduler._ledger._windows.index(0)
        ]
        while engine.engine.has_work():
            engine.step()
            assert pool.num_held <= 64 // 16 + 1
