"""The whole scheduler under random load and tiny memory: every token is right, nothing leaks or hangs."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.engine_run import EngineRun, make_request
from tests.support.poison import Poison
from tests.support.random_load import EOS, SHAPES, VOCAB, Echo, arrivals, configs, is_too_long, play

from headrace.config.engine import Batching, SchedulerConfig
from headrace.core.events import FinishReason

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@given(load=arrivals(), config=configs(), shape=st.sampled_from(SHAPES), data=st.data())
@QUICK
def test_any_load_ends_with_the_right_tokens_and_all_blocks_back(load, config, shape, data):
    num_blocks, windows = shape
    run = EngineRun(
        config,
        num_blocks=num_blocks,
        windows=windows,
        prefix_cache=data.draw(st.booleans()),
        vocab_size=VOCAB,
        max_context=data.draw(st.sampled_from([20, 10_000])),
        draft_source=data.draw(st.sampled_from([None, None, Echo()])),
    )
    play(run, load)
    run.check_empty()
    run.check_tokens()
    for arrival in load:
        if arrival.cancel_after is None:
            for index in range(arrival.request.n):
                finish = run.outputs[arrival.request.request_id, index].finish
                assert finish in (
                    (FinishReason.ERROR,)
                    if is_too_long(arrival.request, run)
                    else (FinishReason.STOP, FinishReason.LENGTH)
                )


@given(load=arrivals(max_size=6), shape=st.sampled_from(SHAPES))
@settings(QUICK, max_examples=15)
def test_tokens_do_not_depend_on_how_the_work_is_scheduled(load, shape):
    """Overlap, batching strategy, chunking, budget, prefix cache: the same tokens, event for event."""
    num_blocks, windows = shape
    base = SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=4, batch_size=2)
    load = [replace(arrival, cancel_after=None) for arrival in load]
    variants = (
        (base, True),
        (base, False),
        (_changed(base, max_uncommitted_plans=2), True),
        (_changed(base, batching=Batching.STATIC), True),
        (_changed(base, batching=Batching.DYNAMIC), False),
        (_changed(base, chunked_prefill=False), True),
        (_changed(base, max_num_batched_tokens=2), True),
    )
    outputs = []
    for config, prefix_cache in variants:
        run = EngineRun(
            config,
            num_blocks=num_blocks,
            windows=windows,
            prefix_cache=prefix_cache,
            vocab_size=VOCAB,
            max_context=24,
        )
        play(run, load)
        run.check_empty()
        outputs.append({key: (o.token_ids, o.finish) for key, o in run.outputs.items()})
    assert all(output == outputs[0] for output in outputs)


@given(
    load=arrivals(),
    config=configs(),
    shape=st.sampled_from(SHAPES),
    fail_at=st.integers(1, 40),
    poison=st.none() | st.integers(0, 3),
)
@settings(QUICK, max_examples=40)
def test_failing_steps_cost_only_those_who_fail_them(load, config, shape, fail_at, poison):
    """One step fails for no reason, and all in which there is a sequence with a certain seed."""
    num_blocks, windows = shape
    run = EngineRun(config, num_blocks=num_blocks, windows=windows, vocab_size=VOCAB)
    poisoned = Poison(run.executor, lambda start: start.seed == poison)
    run.executor.step_error = lambda plan: (
        RuntimeError("once") if run.executor.num_steps == fail_at else poisoned(plan)
    )
    play(run, load)
    run.check_empty()
    run.check_tokens()
    for arrival in load:
        if arrival.request.params.seed != poison and arrival.request.n == 1:
            output = run.outputs[arrival.request.request_id, 0]
            is_error = output.finish is FinishReason.ERROR
            assert is_error == is_too_long(arrival.request, run)


@given(load=arrivals(), num_plans=st.sampled_from([1, 2]), fail_at=st.integers(1, 10))
@settings(QUICK, max_examples=25)
def test_after_it_lost_its_books_the_engine_is_clean_and_serves_on(load, num_plans, fail_at):
    run = EngineRun(
        SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=3, max_uncommitted_plans=num_plans),
        num_blocks=(12,),
        vocab_size=VOCAB,
    )
    commit = run.scheduler.commit

    def broken(result, now):
        if run.executor.num_steps == fail_at:
            raise RuntimeError("boom")
        return commit(result, now)

    run.scheduler.commit = broken
    for arrival in load:
        run.add(arrival.request)
    try:
        run.run()
    except RuntimeError:
        run._take(run.engine.fail_all("a step failed"))
        assert not run.engine.has_work()
    run.scheduler.commit = commit
    for number in range(3):
        run.add(make_request(f"after{number}", [1, 2, 3, 1, 2, number], max_tokens=6, eos=EOS))
    run.run()
    run.check_empty()
    run.check_tokens()


@pytest.mark.parametrize("num_plans", [1, 2])
def test_a_random_failing_row_ends_only_its_own_sequence(num_plans):
    run = EngineRun(
        SchedulerConfig(max_num_batched_tokens=16, max_uncommitted_plans=num_plans),
        num_blocks=(40,),
    )
    run.executor.row_error = lambda plan, row: (
        "not finite" if plan.step_id == 4 and row.slot == 2 else None
    )
    for number in range(5):
        run.add(make_request(f"r{number}", [number, 1, 2], max_tokens=10))
    run.run()
    run.check_empty()
    run.check_tokens()
    failed = [key for key, o in run.outputs.items() if o.finish is FinishReason.ERROR]
    assert len(failed) == 1
    assert run.outputs[failed[0]].events[-1].error == "not finite"


def _changed(config: SchedulerConfig, **changes: object) -> SchedulerConfig:
    fields = {name: getattr(config, name) for name in config.__struct_fields__}
    return SchedulerConfig(**{**fields, **changes})
