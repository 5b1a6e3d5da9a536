"""Beam searches under random load, tiny memory, preemption and cancelled requests."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs
from tests.support.engine_run import EngineRun, make_request
from tests.support.reference_beams import reference_beams

from headrace.config.engine import Batching, SchedulerConfig
from headrace.core.beams import BeamSearch, EarlyStopping
from headrace.core.events import FinishReason
from headrace.core.request import Request

VOCAB = 24
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
ENDED = (FinishReason.STOP, FinishReason.LENGTH)


def searching(request: Request, width: int, n: int = 1, **search: object) -> Request:
    return structs.replace(request, n=n, beams=BeamSearch(width=width, **search))


@st.composite
def searches(draw, name: str) -> Request:
    width = draw(st.integers(1, 4))
    request = make_request(
        name,
        draw(st.lists(st.integers(1, 3), min_size=1, max_size=9)),
        max_tokens=draw(st.integers(1, 8)),
        eos=draw(st.sampled_from([(), (0,), (0, 5)])),
        min_tokens=draw(st.sampled_from([0, 0, 1])),
        priority=draw(st.sampled_from([0, 0, 2])),
    )
    return searching(
        request,
        width,
        draw(st.integers(1, width)),
        length_penalty=draw(st.sampled_from([1.0, 0.0, 2.0, -1.0])),
        early_stopping=draw(st.sampled_from(list(EarlyStopping))),
    )


@st.composite
def loads(draw) -> list[tuple[int, Request, int | None]]:
    """(step of arrival, request, step at which it is cancelled)."""
    found = []
    for number in range(draw(st.integers(1, 5))):
        name = f"r{number}"
        plain = make_request(name, [1, 2, 3], max_tokens=draw(st.integers(1, 9)), eos=(0,), n=2)
        request = draw(st.one_of(searches(name), searches(name), st.just(plain)))
        found.append(
            (draw(st.integers(0, 6)), request, draw(st.none() | st.none() | st.integers(6, 12)))
        )
    return found


def expected(run: EngineRun, request: Request) -> list[list[int]]:
    return reference_beams(
        request,
        vocab_size=run.executor.vocab_size,
        windows=run.executor.windows,
        room=run.scheduler.max_tokens,
    )


@given(
    load=loads(),
    shape=st.sampled_from([((40,), (0,)), ((26,), (0,)), ((40, 40), (0, 7)), ((40,), (6,))]),
    has_cache=st.booleans(),
    config=st.builds(
        SchedulerConfig,
        max_num_batched_tokens=st.sampled_from([4, 8, 32]),
        max_num_seqs=st.sampled_from([4, 5, 8]),
        max_uncommitted_plans=st.sampled_from([1, 2, 3]),
        batching=st.sampled_from([Batching.CONTINUOUS] * 3 + [Batching.DYNAMIC]),
        batch_size=st.just(2),
        max_step_time=st.just(0.0),
    ),
)
@QUICK
def test_searches_find_what_plain_lists_find_and_give_everything_back(
    load, shape, has_cache, config
):
    num_blocks, windows = shape
    run = EngineRun(
        config, num_blocks=num_blocks, windows=windows, prefix_cache=has_cache, vocab_size=VOCAB
    )
    for step in range(16):
        for arrival, request, cancel in load:
            if arrival == step:
                run.add(request)
            if cancel == step:
                run.cancel(request.request_id)
        if run.engine.has_work():
            run.step()
    run.run()
    run.check_empty()
    for _, request, cancel in load:
        outputs = [run.outputs[request.request_id, index] for index in range(request.n)]
        if request.beams is None:
            continue
        if all(output.finish in ENDED for output in outputs):
            found = [output.token_ids for output in outputs]
            assert found == expected(run, request)
        elif cancel is None:  # refused: memory could not ever hold it
            assert all(output.finish is FinishReason.ERROR for output in outputs)


def test_short_memory_preempts_beams_and_changes_no_answer():
    config = SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=16, max_step_time=0.0)
    run = EngineRun(config, num_blocks=(26,), vocab_size=VOCAB)
    request = searching(make_request("r", [1, 2, 3], max_tokens=14, priority=5), 4, 4)
    run.add(request)
    run.step()
    for number in range(5):
        run.add(make_request(f"urgent{number}", [number], max_tokens=30))
    run.run().check_empty()
    assert run.engine.stats().preemptions > 2
    assert [run.tokens("r", index) for index in range(4)] == expected(run, request)


@pytest.mark.parametrize("is_search", [True, False])
def test_beams_and_n_outputs_share_blocks(is_search):
    """Four of them, on a prompt of ten blocks, hold little more than one sequence does."""
    run = EngineRun(num_blocks=(64,), vocab_size=VOCAB)
    request = make_request("r", [1, 2] * 20, max_tokens=8, n=4)
    run.add(searching(request, 4, 4) if is_search else request)
    held = []
    while run.engine.has_work():
        run.step()
        held.append(run.ledger.usage().held)
    # The prompt once; each has its own two blocks of output, and one copied where it parted.
    assert 10 < max(held) <= 10 + 4 * 3


def test_one_output_may_be_cancelled_and_the_others_come():
    run = EngineRun(num_blocks=(64,), vocab_size=VOCAB)
    request = searching(make_request("r", [1, 2, 3], max_tokens=6), 3, 3)
    run.add(request)
    run.step()
    run.cancel("r", 1)
    assert run.outputs["r", 1].finish is FinishReason.CANCELLED
    run.cancel("r", 1)
    run.run().check_empty()
    answers = expected(run, request)
    assert [run.tokens("r", 0), run.tokens("r", 2)] == [answers[0], answers[2]]


def test_time_that_runs_out_gives_the_best_so_far():
    run = EngineRun(num_blocks=(64,), vocab_size=VOCAB)
    run.add(
        searching(
            make_request("r", [1, 2, 3], max_tokens=50, deadline=run.clock.monotonic() + 0.055),
            3,
            2,
        )
    )
    run.run().check_empty()
    best, second = run.outputs["r", 0], run.outputs["r", 1]
    assert best.finish is second.finish is FinishReason.TIMEOUT
    assert len(best.token_ids) == len(second.token_ids) > 2
    assert best.token_ids != second.token_ids


def test_a_row_that_fails_ends_the_whole_search():
    run = EngineRun(num_blocks=(64,), vocab_size=VOCAB)
    run.executor.row_error = lambda plan, row: "no" if plan.step_id == 3 else None
    run.add(searching(make_request("r", [1, 2, 3], max_tokens=9), 3, 2))
    run.run().check_empty()
    assert {run.outputs["r", index].finish for index in range(2)} == {FinishReason.ERROR}


def test_steps_that_fail_cost_time_and_no_answer():
    run = EngineRun(num_blocks=(64,), vocab_size=VOCAB)
    run.executor.step_error = lambda plan: RuntimeError("now") if plan.step_id == 4 else None
    request = searching(make_request("r", [1, 2, 3], max_tokens=9), 3, 3)
    run.add(request)
    run.run().check_empty()
    assert [run.tokens("r", index) for index in range(3)] == expected(run, request)


def test_what_cannot_ever_run_is_refused():
    run = EngineRun(num_blocks=(16,), vocab_size=VOCAB)
    base = make_request("r", [1, 2, 3], max_tokens=6)
    for request in (
        searching(base, 17),
        searching(base, 2, 3),
        searching(structs.replace(base, prior_output_ids=[4]), 2),
        searching(structs.replace(base, params=structs.replace(base.params, max_tokens=60)), 4),
        searching(structs.replace(base, eos_token_ids=tuple(range(17))), 2),
    ):
        again = EngineRun(run.config, num_blocks=(16,), vocab_size=VOCAB)
        again.add(request)
        again.check_empty()
        output = again.outputs["r", 0]
        assert output.finish is FinishReason.ERROR
        assert output.events[0].error_kind == "BadRequestError"
