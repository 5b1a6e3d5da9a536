"""The double notices what it says it notices: otherwise tests that use it would prove little."""

import pytest
from tests.support.engine_run import make_request
from tests.support.fake_executor import FakeExecutor, PlanError
from tests.support.reference_tokens import reference_tokens

from headrace.core.sampling import SamplingParams
from headrace.core.step import (
    BlockCopy,
    BlockWrite,
    OutputKind,
    PlanRow,
    SequenceStart,
    StepPlan,
)


def start(slot, tokens, seed=1):
    return SequenceStart(slot, SamplingParams(), (), tokens, len(tokens), seed)


def row(slot, first, tokens, output=OutputKind.SAMPLE, first_output=0, num_draft=0):
    return PlanRow(slot, first, len(tokens), tokens, output, num_draft, first_output)


def run(executor, **fields):
    step_id = executor.num_steps + 1
    executor.submit(StepPlan(step_id=step_id, **{"rows": (), **fields}))
    return executor.collect()


def prepared(vocab_size=64):
    """Slot 0 holds [1, 2, 3] in block 5, and has sampled."""
    executor = FakeExecutor(block_size=4, vocab_size=vocab_size)
    result = run(
        executor,
        rows=(row(0, 0, [1, 2, 3]),),
        starts=(start(0, [1, 2, 3]),),
        block_writes=(BlockWrite(0, 0, 0, [5]),),
    )
    return executor, result.rows[0].token_ids[0]


def test_tokens_equal_the_reference():
    executor, token = prepared()
    expected = reference_tokens(
        make_request("a", [1, 2, 3], max_tokens=2), vocab_size=64, windows=(0,), room=99
    )
    assert token == expected[0]
    result = run(executor, rows=(PlanRow(0, 3, 1, [], OutputKind.SAMPLE, 0, 1),))
    assert result.rows[0].token_ids == (expected[1],)


def test_the_content_of_a_block_decides_the_token():
    executor, _ = prepared(10**9)
    other = FakeExecutor(block_size=4, vocab_size=10**9)
    run(
        other,
        rows=(row(0, 0, [9, 2, 3]),),
        starts=(start(0, [9, 2, 3]),),
        block_writes=(BlockWrite(0, 0, 0, [5]),),
    )
    tokens = {
        run(e, rows=(row(0, 3, [4], first_output=1),)).rows[0].token_ids for e in (executor, other)
    }
    assert len(tokens) == 2


def test_copies_carry_content_and_drafts_are_accepted_by_equality():
    executor, token = prepared()
    expected = reference_tokens(
        make_request("a", [1, 2, 3], max_tokens=4), vocab_size=64, windows=(0,), room=99
    )
    wrong = (expected[2] + 1) % 64
    result = run(
        executor,
        rows=(row(1, 3, [token, expected[1], wrong], first_output=1, num_draft=2),),
        starts=(start(1, [1, 2, 3]),),
        block_copies=(BlockCopy(0, 5, 6),),
        block_writes=(BlockWrite(1, 0, 0, [6, 7]),),
    )
    assert result.rows[0].token_ids == (expected[1], expected[2])


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({}, "no rows"),
        ({"rows": (row(3, 0, [1]),)}, "empty"),
        ({"rows": (row(0, 4, [1]),)}, "no block"),
        ({"rows": (row(0, 3, [1]),), "starts": (start(0, [1]),)}, "in use"),
        ({"rows": (row(0, 3, [1]), row(0, 3, [1]))}, "two rows write"),
        (
            {
                "rows": (row(1, 3, [1]),),
                "starts": (start(1, [1]),),
                "block_writes": (BlockWrite(1, 0, 0, [9]),),
            },
            "not there",
        ),
        ({"rows": (PlanRow(0, 2, 2, [1], OutputKind.SAMPLE),)}, "1 ids for 2"),
    ],
)
def test_plans_that_cannot_run_are_refused(fields, word):
    executor, _ = prepared()
    with pytest.raises(PlanError, match=word):
        run(executor, **fields)
