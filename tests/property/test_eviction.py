"""Sequences that keep only what matters, among others: their tokens depend on themselves alone."""

from dataclasses import replace
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from tests.support.engine_run import EngineRun, make_request
from tests.support.fake_tier import FakeTier
from tests.support.random_load import SHAPES, VOCAB, Echo, arrivals, configs, is_too_long, play

from headrace.config.engine import SchedulerConfig
from headrace.core.events import FinishReason
from headrace.core.request import KVPolicy, KVPolicyKind
from headrace.engine.memory.block_table import GIVEN_BACK
from headrace.engine.memory.eviction import blocks_to_drop, num_kept
from headrace.engine.scheduler import eviction

POLICIES = st.builds(
    KVPolicy,
    st.sampled_from([KVPolicyKind.EVICT, KVPolicyKind.EVICT, KVPolicyKind.FULL]),
    st.integers(0, 5),
    st.integers(1, 14),
)


@given(
    load=arrivals(max_size=6),
    config=configs(),
    shape=st.sampled_from(SHAPES),
    policies=st.lists(POLICIES, min_size=6, max_size=6),
    observed=st.sampled_from([1, 6, 32]),
    data=st.data(),
)
@settings(max_examples=100)
def test_tokens_of_those_who_evict_are_right_under_any_load(
    load, config, shape, policies, observed, data
):
    """Chunks, batches, plans in flight, prefix hits, a tier, guesses, preemptions, a failed step."""
    fail_at = data.draw(st.none() | st.integers(1, 30))
    tier = FakeTier(delay=lambda load: load.key[0] % 3) if data.draw(st.booleans()) else None
    load = [
        replace(arrival, request=structs.replace(arrival.request, kv_policy=policy))
        for arrival, policy in zip(load, policies, strict=False)
    ]
    num_blocks, windows = shape
    with patch.object(eviction, "OBSERVED", observed):
        run = EngineRun(
            config,
            num_blocks=num_blocks,
            windows=windows,
            vocab_size=VOCAB,
            tier=tier,
            draft_source=data.draw(st.sampled_from([None, None, Echo()])),
        )
        run.executor.step_error = lambda plan: (
            RuntimeError("once") if run.executor.num_steps == fail_at else None
        )
        play(run, load)
        run.check_empty()
        run.check_tokens()
    for arrival in load:
        if arrival.cancel_after is None and not is_too_long(arrival.request, run):
            for index in range(arrival.request.n):
                finish = run.outputs[arrival.request.request_id, index].finish
                assert finish in (FinishReason.STOP, FinishReason.LENGTH)


@given(
    length=st.integers(1, 40),
    window=st.integers(1, 24),
    num_sinks=st.integers(0, 8),
    num_plans=st.sampled_from([1, 2]),
)
@settings(max_examples=40)
def test_memory_stays_within_the_budget_once_the_prompt_is_computed(
    length, window, num_sinks, num_plans
):
    policy = KVPolicy(KVPolicyKind.EVICT, num_sinks, window)
    run = EngineRun(
        SchedulerConfig(max_num_batched_tokens=64, max_uncommitted_plans=num_plans),
        num_blocks=(40,),
        vocab_size=VOCAB,
    )
    prompt = [1 + number % 3 for number in range(length)]
    run.add(make_request("a", prompt, max_tokens=60, kv_policy=policy))
    budget = num_kept(window, num_sinks, 4)
    while run.engine.has_work():
        run.step()
        # Beside full blocks: the one being written, and what a plan in flight was given.
        if run.outputs["a", 0].token_ids:
            assert run.ledger.usage().held <= budget + 2
    run.check_empty()
    run.check_tokens()


@given(
    table=st.lists(st.sampled_from([GIVEN_BACK, 7]), min_size=1, max_size=30),
    data=st.data(),
    num_sinks=st.integers(0, 6),
)
def test_the_least_of_those_that_may_go_do(table, data, num_sinks):
    num_full = data.draw(st.integers(0, len(table)))
    budget = data.draw(st.integers(num_sinks + 1, num_sinks + 12))
    mass = data.draw(
        st.lists(st.integers(0, 5).map(float), min_size=len(table), max_size=len(table))
    )
    found = blocks_to_drop(table, mass, num_full, num_sinks, budget)
    kept = [i for i in range(num_full) if table[i] != GIVEN_BACK]
    assert len(kept) - len(found) == min(len(kept), budget)
    assert found == sorted(set(found))
    assert set(found) <= set(kept)
    assert all(index >= num_sinks for index in found)
    if found:
        left = [i for i in kept if i not in found]
        assert max(found) < left[-1]
        recent = left[-max(1, (budget - num_sinks) // 2) :]
        weighed = [i for i in left if i >= num_sinks and i not in recent]
        assert all(mass[i] >= max(mass[j] for j in found) for i in weighed)
