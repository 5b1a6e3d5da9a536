"""What the sampler keeps between steps is never stale."""

import numpy as np

from headrace.core.sampling import SamplingParams, ThinkingLimit
from headrace.core.step import OutputKind, PlanRow, RowResult, SequenceStart, StepPlan
from headrace.engine.executor.inputs import InputBuilder
from headrace.engine.executor.sampler import Sampler
from headrace.engine.executor.slots import SlotTable
from headrace.kernels.reference.backend import ReferenceBackend

VOCAB = 8
LOGITS = np.arange(VOCAB, dtype=np.float32)


def start(table, params, *, mask=()):
    table.start(SequenceStart(0, params, mask, [1, 2], 2, 0))


def draw(sampler, table, position):
    plan = StepPlan(step_id=position, rows=(PlanRow(0, 1, 1, [], OutputKind.SAMPLE, 0, position),))
    _, outputs = InputBuilder(table, max_tokens=8).build(plan)
    (result,) = sampler.run(plan, outputs, LOGITS[None, :].copy())
    return result.token_ids[0]


def test_a_new_sequence_in_the_same_slot_brings_its_own_parameters():
    table = SlotTable(1, 16, (1,))
    sampler = Sampler(ReferenceBackend(), table)
    start(table, SamplingParams(temperature=0.0, logit_bias={3: 100.0}))
    assert [draw(sampler, table, 0), draw(sampler, table, 1)] == [3, 3]
    table.end(0)
    start(table, SamplingParams(temperature=0.0))
    assert draw(sampler, table, 0) == 7


def test_a_minimum_length_ends_while_nothing_else_changes():
    table = SlotTable(1, 16, (1,))
    sampler = Sampler(ReferenceBackend(), table)
    start(table, SamplingParams(temperature=0.0, min_tokens=2), mask=(7,))
    assert [draw(sampler, table, position) for position in range(4)] == [6, 6, 7, 7]


class Going:
    """Two sequences that decode side by side: inputs, logits and what is bound to them stay the same objects."""

    def __init__(self, *params):
        self.table = SlotTable(2, 16, (1,))
        self.sampler = Sampler(ReferenceBackend(), self.table)
        self.inputs = InputBuilder(self.table, max_tokens=8)
        self.logits = np.zeros((2, VOCAB), np.float32)
        for slot, of_slot in enumerate(params):
            self.start(slot, of_slot)

    def start(self, slot, params):
        self.table.start(SequenceStart(slot, params, (), [1, 2], 2, 0))

    def draw(self, step, first, second):
        """Results when these are the likeliest tokens (None: its logits are not finite)."""
        rows = tuple(PlanRow(slot, 1 + step, 1, [], OutputKind.SAMPLE, 0, step) for slot in (0, 1))
        plan = StepPlan(step_id=step, rows=rows)
        _, outputs = self.inputs.build(plan)
        for row, best in enumerate((first, second)):
            self.logits[row] = np.nan if best is None else 0.0
            if best is not None:
                self.logits[row, best] = 9.0
        return self.sampler.run(plan, outputs, self.logits)


GREEDY = SamplingParams(temperature=0.0)


def test_going_on_gives_each_its_token_and_writes_it_down():
    going = Going(GREEDY, GREEDY)
    for step, (first, second) in enumerate([(3, 4), (5, 6), (7, 0)]):
        assert going.draw(step, first, second) == (
            RowResult(0, (first,)),
            RowResult(1, (second,)),
        )
    assert going.table.history[:, 2:5].tolist() == [[3, 5, 7], [4, 6, 0]]


def test_going_on_a_row_whose_logits_are_not_finite_fails_alone():
    going = Going(GREEDY, GREEDY)
    going.draw(0, 3, 4)
    first, second = going.draw(1, None, 6)
    assert first.error is not None
    assert first.token_ids == ()
    assert second == RowResult(1, (6,))


def test_going_on_ends_when_somebody_with_log_probabilities_takes_the_slot():
    going = Going(GREEDY, GREEDY)
    going.draw(0, 3, 4)
    assert going.draw(1, 5, 6)[1].logprobs == ()
    going.start(1, SamplingParams(temperature=0.0, logprobs=1))
    first, second = going.draw(2, 3, 4)
    assert (first.logprobs, second.token_ids, len(second.logprobs)) == ((), (4,), 1)


def test_bounds_and_thinking_hold_while_others_go_on():
    going = Going(GREEDY, GREEDY)
    going.draw(0, 3, 4)
    limit = ThinkingLimit(max_tokens=0, begin_ids=(), end_ids=(6,), forced_ids=(6,))
    going.start(0, SamplingParams(temperature=0.0, thinking=limit))
    bounded = SequenceStart(1, SamplingParams(temperature=0.0, bad_words=((5,),)), (), [1, 2], 2, 0)
    going.table.start(bounded)
    going.sampler.bounds.start(bounded)
    assert [row.token_ids for row in going.draw(1, 3, 5)] == [(6,), (0,)]
    assert [row.token_ids for row in going.draw(2, 3, 4)] == [(3,), (4,)]
