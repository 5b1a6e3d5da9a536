"""The prefill share of a step, from what steps were measured to cost."""

import pytest

from headrace.core.events import FinishReason
from headrace.engine.scheduler.budget import (
    MIN_PREFILL_TOKENS,
    StepCost,
    observe,
    prefill_cap,
    step_target,
)
from headrace.engine.scheduler.outcome import Outcome, judge

UNKNOWN = StepCost()


def learn(steps, cost=UNKNOWN):
    for num_prefill, num_decode, seconds in steps:
        cost = observe(cost, num_prefill, num_decode, seconds)
    return cost


def test_no_target_or_no_stream_takes_the_whole_budget():
    cost = StepCost(0.001, 0.01)
    assert prefill_cap(cost, 0.0, 8, 512) == 512
    assert step_target(0.05, 0.0, 0) == step_target(0.0, 0.0, 3) == 0.0
    assert step_target(0.05, 0.0, 1) == step_target(0.05, 5.0, 1) == 0.05
    assert step_target(0.05, 5.0, 0) == step_target(9.0, 5.0, 2) == 5.0


def test_before_any_measurement_prefill_is_careful():
    assert prefill_cap(StepCost(), 0.05, 1, 512) == MIN_PREFILL_TOKENS
    assert prefill_cap(StepCost(), 0.05, 1, 8) == 8


def test_cap_fills_what_decode_leaves_of_the_target():
    assert prefill_cap(StepCost(0.001, 0.010), 0.050, 1, 512) == 40
    assert prefill_cap(StepCost(0.001, 0.010), 0.050, 2, 512) == 30
    assert prefill_cap(StepCost(0.001, 0.010), 0.050, 100, 512) == MIN_PREFILL_TOKENS
    assert prefill_cap(StepCost(1e-9, 0.010), 0.050, 1, 512) == 512


@pytest.mark.parametrize("per_token", [0.0002, 0.002])
def test_mixed_steps_settle_at_the_target(per_token):
    """Steps that truly cost 8 ms + per_token: the plan that follows the cap lasts about the target."""
    cost, target, seconds = StepCost(), 0.100, 0.0
    for step in range(60):
        tokens = prefill_cap(cost, target, 4, 4096) if step % 3 else 0
        seconds = 0.008 + tokens * per_token
        cost = observe(cost, tokens, 4, seconds)
    tokens = prefill_cap(cost, target, 4, 4096)
    assert 0.008 + tokens * per_token == pytest.approx(target, rel=0.1)


def test_a_rate_from_one_row_is_corrected_by_a_crowded_step():
    cost = learn([(0, 1, 0.020)] * 5)
    assert cost.per_decode_row == pytest.approx(0.020)
    crowded = learn([(16, 32, 0.050)] * 40, cost)
    assert crowded.per_decode_row < 0.003
    assert observe(cost, 0, 0, 1.0) == observe(cost, 5, 5, 0.0) == cost


def test_tokens_count_up_to_the_first_that_ends():
    assert judge((5, 6), {9}, 10) == Outcome(2, None, None)
    assert judge((5, 9, 6), {9}, 10) == Outcome(2, FinishReason.STOP, 9)
    assert judge((5, 6, 7), {9}, 2) == Outcome(2, FinishReason.LENGTH, None)
    assert judge((5, 9), {9}, 2) == Outcome(2, FinishReason.STOP, 9)
