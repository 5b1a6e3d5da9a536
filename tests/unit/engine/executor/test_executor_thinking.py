"""Reasoning ends when its tokens are used, by a rule that sees nothing but the output."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.sampling import SamplingParams, ThinkingLimit
from headrace.core.step import OutputKind, PlanRow, SequenceStart, StepPlan
from headrace.engine.executor.inputs import InputBuilder
from headrace.engine.executor.sampler import Sampler
from headrace.engine.executor.slots import SlotTable
from headrace.engine.executor.thinking import ThinkingState
from headrace.kernels.reference.backend import ReferenceBackend

OPEN = ThinkingLimit(max_tokens=3, end_ids=(8,), forced_ids=(7, 8))
TAGGED = ThinkingLimit(max_tokens=2, begin_ids=(5, 6), end_ids=(8, 9), forced_ids=(8, 9))


def said(limit: ThinkingLimit, wanted: list[int]) -> list[int]:
    """What a model that wants to say these tokens says."""
    state, out = ThinkingState(limit), []
    for token_id in wanted:
        out.append(token_id if state.forced is None else state.forced)
        state.advance(out[-1])
    return out


@pytest.mark.parametrize(
    ("limit", "wanted", "given_"),
    [
        (OPEN, [1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 7, 8, 1, 1]),
        (OPEN, [1, 8, 1, 1, 1, 1], [1, 8, 1, 1, 1, 1]),
        (OPEN, [1, 1, 8, 1, 1], [1, 1, 8, 1, 1]),
        (TAGGED, [1, 5, 1, 6, 1, 1, 1], [1, 5, 1, 6, 1, 1, 1]),
        (TAGGED, [5, 6, 1, 1, 1, 1, 1], [5, 6, 1, 1, 8, 9, 1]),
        (TAGGED, [5, 6, 8, 9, 5, 6, 1, 1, 1], [5, 6, 8, 9, 5, 6, 1, 1, 1]),
        (TAGGED, [5, 6, 1, 8, 9, 1], [5, 6, 1, 8, 8, 9]),
    ],
)
def test_the_end_is_forced_once(limit, wanted, given_):
    assert said(limit, wanted) == given_


def test_no_reasoning_at_all():
    none = ThinkingLimit(max_tokens=0, end_ids=(8,), forced_ids=(8,))
    assert said(none, [1, 1, 1]) == [8, 1, 1]


@given(st.lists(st.integers(5, 9), max_size=20), st.integers(0, 20))
def test_where_one_stops_and_begins_again_changes_nothing(wanted, cut):
    whole = said(TAGGED, wanted)
    before = whole[:cut]
    state = ThinkingState(TAGGED).after(before)
    for token_id in whole[cut:]:
        assert state.forced in (None, token_id)
        state.advance(token_id)


@given(st.lists(st.integers(0, 9), max_size=12))
def test_output_that_was_not_bounded_is_taken(prior):
    state = ThinkingState(OPEN).after(prior)
    assert state.forced in (None, *OPEN.forced_ids)


def test_draws_and_drafts_are_bounded_and_others_are_free():
    table = SlotTable(3, 16, (1,))
    params = SamplingParams(temperature=0.0, thinking=OPEN)
    free = SamplingParams(temperature=0.0)
    table.start(SequenceStart(0, params, (), [1, 1, 1, 1, 1], 2, 0))
    table.start(SequenceStart(1, params, (), [1, 1, 1, 1], 2, 0))
    table.start(SequenceStart(2, free, (), [1, 1], 2, 0))
    rows = (
        PlanRow(0, 4, 1, [1], OutputKind.SAMPLE),
        PlanRow(1, 3, 4, [1, 30, 7, 5], OutputKind.SAMPLE, 3),
        PlanRow(2, 1, 1, [1], OutputKind.SAMPLE),
    )
    plan = StepPlan(step_id=1, rows=rows)
    _, outputs = InputBuilder(table, max_tokens=32).build(plan)
    logits = np.tile(np.arange(31, dtype=np.float32), (outputs.count, 1))
    results = Sampler(ReferenceBackend(), table).run(plan, outputs, logits)
    assert [result.token_ids for result in results] == [(7,), (30, 7, 8), (30,)]
    # The state has moved on with what was accepted.
    plan = StepPlan(step_id=2, rows=(PlanRow(0, 5, 1, [7], OutputKind.SAMPLE),))
    _, outputs = InputBuilder(table, max_tokens=32).build(plan)
    logits = np.tile(np.arange(31, dtype=np.float32), (outputs.count, 1))
    assert Sampler(ReferenceBackend(), table).run(plan, outputs, logits)[0].token_ids == (8,)
    table.end(0)
    table.end(1)
    assert not table.thinking
