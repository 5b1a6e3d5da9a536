"""Sizing is arithmetic: every answer is checked against the bytes it promises."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.engine.executor.sizing import AUTO_TOKENS, GroupCost, SizingFacts, size_kv

GIB = 1024**3


def facts(**changes):
    values = {
        "available_bytes": 16 * GIB,
        "weight_bytes": GIB,
        "groups": (GroupCost(0, 23_040),),
        "block_size": 16,
        "model_context": 8192,
        "max_num_seqs": 64,
        "max_chunk": 512,
    }
    return SizingFacts(**(values | changes))


def size(given_facts, *, kv_bytes=None, memory_utilization=0.0, wanted_context=0):
    return size_kv(
        given_facts,
        kv_bytes=kv_bytes,
        memory_utilization=memory_utilization,
        wanted_context=wanted_context,
    )


def test_auto_takes_what_it_aims_at_when_memory_is_plenty():
    sizing = size(facts())
    assert sizing.num_blocks == (AUTO_TOKENS // 16,)
    assert sizing.max_context == 8192


def test_auto_never_takes_more_than_a_quarter_of_free_memory():
    sizing = size(facts(available_bytes=GIB))
    assert sizing.kv_bytes <= GIB // 4
    assert sizing.max_context == 8192
    tight = size(facts(available_bytes=256 * 1024**2))
    assert tight.max_context < 8192
    assert "fitted" in tight.explanation


def test_an_operator_who_asks_for_too_long_a_context_is_told_the_numbers():
    with pytest.raises(ConfigError, match="8192"):
        size(facts(), kv_bytes=64 * 1024**2, wanted_context=8192)


def test_auto_grows_to_the_context_that_was_asked_for():
    given = facts(model_context=131_072)
    sizing = size(given, wanted_context=2 * AUTO_TOKENS)
    assert sizing.max_context == 2 * AUTO_TOKENS
    assert sizing.kv_bytes <= given.available_bytes // 4
    assert size(given).num_blocks == (AUTO_TOKENS // 16,)


def test_more_than_is_free_is_refused_with_both_numbers():
    with pytest.raises(ConfigError, match=r"17408 MiB, but 16384 MiB are free"):
        size(facts(), kv_bytes=17 * GIB)


def test_less_than_two_blocks_is_refused():
    with pytest.raises(ConfigError, match="fewer than two blocks"):
        size(facts(), kv_bytes=1000)


def test_utilization_leaves_room_for_weights():
    sizing = size(facts(), memory_utilization=0.5)
    assert 6.9 * GIB < sizing.kv_bytes <= 7 * GIB


@given(
    budget=st.integers(4 * 1024**2, 4 * GIB),
    window=st.sampled_from([0, 16, 512, 4096]),
    cost=st.integers(64, 300_000),
)
def test_a_given_budget_is_used_but_never_exceeded(budget, window, cost):
    groups = (GroupCost(0, cost), GroupCost(window, 2 * cost)) if window else (GroupCost(0, cost),)
    try:
        sizing = size(facts(groups=groups), kv_bytes=budget)
    except ConfigError:
        assert budget < 3 * cost * 2 * 16 * 2
        return
    assert sizing.kv_bytes <= budget
    assert sizing.max_context <= 8192
    assert sizing.num_blocks[0] * 16 >= sizing.max_context
