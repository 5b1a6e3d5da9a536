"""Plans become ragged arrays; every token and output row lands where the plan said."""

import pytest

from headrace.core.sampling import SamplingParams
from headrace.core.step import BlockWrite, OutputKind, PlanRow, SequenceStart, StepPlan
from headrace.engine.executor.inputs import InputBuilder
from headrace.engine.executor.slots import SlotTable


def start(slot, token_ids, *, params=None, mask=(), adapter=0):
    return SequenceStart(
        slot=slot,
        params=params or SamplingParams(),
        mask_token_ids=mask,
        token_ids=token_ids,
        num_prompt_tokens=len(token_ids),
        seed=slot,
        adapter_index=adapter,
    )


def build(table, *rows, max_tokens=64):
    return InputBuilder(table, max_tokens=max_tokens).build(StepPlan(step_id=1, rows=rows))


def test_prefill_decode_and_draft_rows_share_one_step():
    table = SlotTable(4, 32, (2,))
    table.start(start(0, [5, 6, 7, 8]))
    table.start(start(2, [9, 10]))
    table.history[2, 2] = 77
    inputs, outputs = build(
        table,
        PlanRow(0, 1, 3, [6, 7, 8], OutputKind.NONE),
        PlanRow(2, 2, 1, [], OutputKind.SAMPLE, 0, 1),
        PlanRow(0, 4, 3, [11, 12, 13], OutputKind.SAMPLE, 2, 1),
    )
    assert inputs.token_ids.tolist() == [6, 7, 8, 77, 11, 12, 13]
    assert inputs.positions.tolist() == [1, 2, 3, 2, 4, 5, 6]
    assert inputs.query_starts.tolist() == [0, 3, 4, 7]
    assert inputs.key_starts.tolist() == [1, 2, 4]
    assert inputs.slots.tolist() == [0, 2, 0]
    assert inputs.output_rows.tolist() == [3, 4, 5, 6]
    assert outputs.slots.tolist() == [2, 0, 0, 0]
    assert outputs.history_lengths.tolist() == [3, 5, 6, 7]
    assert outputs.output_positions.tolist() == [1, 1, 2, 3]


def test_single_token_rows_read_the_history():
    table = SlotTable(2, 8, (1,))
    table.start(start(0, [3]))
    table.start(start(1, [4, 5]))
    inputs, outputs = build(
        table,
        PlanRow(1, 1, 1, [5], OutputKind.SAMPLE),
        PlanRow(0, 0, 1, [], OutputKind.SAMPLE),
    )
    assert inputs.token_ids.tolist() == [5, 3]
    assert inputs.query_starts.tolist() == [0, 1, 2]
    assert outputs.history_lengths.tolist() == [2, 1]


def test_every_token_carries_the_adapter_of_its_sequence():
    table = SlotTable(3, 8, (1,))
    table.start(start(0, [3, 4, 5]))
    table.start(start(2, [6, 7], adapter=4))
    base = PlanRow(0, 0, 3, [3, 4, 5], OutputKind.SAMPLE)
    assert build(table, base)[0].adapters is None
    inputs, _ = build(table, base, PlanRow(2, 0, 2, [6, 7], OutputKind.SAMPLE))
    assert inputs.adapters.tolist() == [0, 0, 0, 4, 4]
    table.start(start(2, [6]))
    assert build(table, PlanRow(2, 0, 1, [6], OutputKind.SAMPLE))[0].adapters is None


def test_a_new_sequence_starts_with_an_empty_block_table():
    table = SlotTable(1, 32, (2, 2))
    table.write_blocks(BlockWrite(0, 1, 0, [7, 8]))
    table.start(start(0, [1]))
    table.write_blocks(BlockWrite(0, 0, 1, [4]))
    assert table.block_tables[0].tolist() == [[-1, 4]]
    assert table.block_tables[1].tolist() == [[-1, -1]]


def test_biases_and_minimum_length_masks_are_joined_per_row():
    table = SlotTable(3, 8, (1,))
    table.start(
        start(0, [1], params=SamplingParams(logit_bias={4: 2.0}, min_tokens=2), mask=(0, 9))
    )
    table.start(start(1, [1]))
    table.start(start(2, [1], params=SamplingParams(min_tokens=1), mask=(0,)))
    starts, ids, values = table.biases([0, 1, 2, 0], [1, 0, 1, 2])
    assert starts.tolist() == [0, 3, 3, 3, 4]
    assert ids.tolist() == [4, 0, 9, 4]
    assert values.tolist() == [2.0, float("-inf"), float("-inf"), 2.0]
    table.end(0)
    assert table.biases([0], [0])[1].tolist() == []


def decode(slot, position, **fields):
    return PlanRow(slot, position, 1, [], OutputKind.SAMPLE, 0, position - 1, **fields)


def as_lists(built):
    inputs, outputs = built
    arrays = (
        inputs.token_ids,
        inputs.positions,
        inputs.query_starts,
        inputs.key_starts,
        inputs.slots,
        inputs.output_rows,
        outputs.slots,
        outputs.history_lengths,
        outputs.output_positions,
    )
    return [array.tolist() for array in arrays]


def test_steady_decode_fills_the_same_objects_as_a_new_build_would():
    table = SlotTable(3, 8, (1,))
    for slot in range(3):
        table.history[slot] = range(slot * 10, slot * 10 + 9)
    builder = InputBuilder(table, max_tokens=8)
    first = builder.build(StepPlan(step_id=1, rows=(decode(2, 3), decode(0, 1))))
    plan = StepPlan(step_id=2, rows=(decode(2, 4), decode(0, 2)))
    second = builder.build(plan)
    assert second[0] is first[0]
    assert second[1] is first[1]
    assert as_lists(second) == as_lists(build(table, *plan.rows))
    assert second[0].token_ids.tolist() == [24, 2]


@pytest.mark.parametrize(
    "rows",
    [
        (decode(0, 2),),
        (decode(1, 4), decode(0, 2)),
        (decode(2, 4), decode(0, 2), decode(1, 1)),
        (decode(2, 4), PlanRow(0, 2, 1, [7], OutputKind.NONE)),
        (decode(2, 4), PlanRow(0, 2, 2, [7, 8], OutputKind.SAMPLE, 1, 1)),
    ],
)
def test_other_rows_are_built_anew(rows):
    table = SlotTable(3, 8, (1,))
    for slot in range(3):
        table.history[slot] = range(slot * 10, slot * 10 + 9)
    builder = InputBuilder(table, max_tokens=8)
    before = builder.build(StepPlan(step_id=1, rows=(decode(2, 3), decode(0, 1))))
    after = builder.build(StepPlan(step_id=2, rows=rows))
    assert after[0] is not before[0]
    assert as_lists(after) == as_lists(build(table, *rows))


def test_a_step_that_only_reported_on_a_prompt_is_no_beginning_of_decoding():
    table = SlotTable(1, 8, (1,))
    table.start(start(0, [3, 4, 5]))
    builder = InputBuilder(table, max_tokens=8)
    scoring = PlanRow(0, 1, 1, [4], OutputKind.NONE, num_scored=1)
    assert builder.build(StepPlan(step_id=1, rows=(scoring,)))[1].scored is not None
    last = PlanRow(0, 2, 1, [5], OutputKind.SAMPLE)
    after = builder.build(StepPlan(step_id=2, rows=(last,)))
    assert after[1].count == 1
    assert after[1].scored is None
    assert as_lists(after) == as_lists(build(table, last))


def test_an_adapter_that_takes_a_slot_over_is_seen():
    table = SlotTable(1, 8, (1,))
    table.start(start(0, [3]))
    builder = InputBuilder(table, max_tokens=8)
    plan = StepPlan(step_id=1, rows=(PlanRow(0, 0, 1, [], OutputKind.SAMPLE),))
    assert builder.build(plan)[0].adapters is None
    table.start(start(0, [4], adapter=2))
    inputs, _ = builder.build(plan)
    assert inputs.adapters.tolist() == [2]
    assert inputs.token_ids.tolist() == [4]
