"""What the sampler keeps between steps is never stale."""

import numpy as np

from headrace.core.sampling import SamplingParams
from headrace.core.step import OutputKind, PlanRow, SequenceStart, StepPlan
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
