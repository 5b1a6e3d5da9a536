"""A step that fails ends the sequence that fails it, and for all others it was a delay."""

import pytest
from tests.support.engine_run import EngineRun, make_request
from tests.support.poison import Poison

from headrace.config.engine import Batching, SchedulerConfig
from headrace.core.events import FinishReason
from headrace.engine.engine import MAX_LONE_FAILURES
from headrace.engine.failure import ExecutorBrokenError

POISON = 666


def config(num_plans=1, **changes):
    return SchedulerConfig(
        max_num_batched_tokens=16, max_uncommitted_plans=num_plans, max_num_seqs=16, **changes
    )


def add_many(run, count, bad=(), *, max_tokens=12):
    for number in range(count):
        seed = POISON if number in bad else number
        run.add(make_request(f"r{number}", [1, 2, number], seed=seed, max_tokens=max_tokens))


def ends(run):
    return {key[0]: output.finish for key, output in run.outputs.items()}


@pytest.mark.parametrize("num_plans", [1, 2, 3])
@pytest.mark.parametrize("bad", [(0,), (5,), (11,), (2, 3), (0, 6, 11)])
def test_only_the_culprits_end_and_the_others_lose_no_token(num_plans, bad):
    run = EngineRun(config(num_plans))
    Poison(run.executor, lambda start: start.seed == POISON)
    add_many(run, 12, bad)
    run.run()
    run.check_empty()
    run.check_tokens()
    assert [name for name, finish in ends(run).items() if finish is FinishReason.ERROR] == [
        f"r{number}" for number in bad
    ]
    for number in bad:
        last = run.outputs[f"r{number}", 0].events[-1]
        assert (last.error, last.error_kind) == (
            "A step of the engine failed: RuntimeError.",
            "InternalError",
        )


def test_one_culprit_among_many_is_found_by_halves():
    run = EngineRun(config())
    poison = Poison(run.executor, lambda start: start.seed == POISON)
    add_many(run, 16, bad=(9,))
    run.run()
    run.check_tokens()
    assert poison.num_failed <= 6  # all 16, then 8, 4, 2, 1


@pytest.mark.parametrize("num_plans", [1, 2])
def test_what_fails_once_for_no_reason_fails_nobody(num_plans):
    run = EngineRun(config(num_plans))
    run.executor.step_error = lambda plan: (
        RuntimeError("once") if run.executor.num_steps in (2, 9) else None
    )
    add_many(run, 5)
    run.run()
    run.check_empty()
    run.check_tokens()
    assert set(ends(run).values()) == {FinishReason.LENGTH}


@pytest.mark.parametrize("num_plans", [1, 2])
def test_a_step_too_large_for_memory_is_run_in_parts(num_plans):
    run = EngineRun(config(num_plans))
    run.executor.step_error = lambda plan: MemoryError() if len(plan.rows) > 3 else None
    add_many(run, 10)
    run.run()
    run.check_empty()
    run.check_tokens()
    assert set(ends(run).values()) == {FinishReason.LENGTH}


def test_a_long_prompt_that_fails_late_is_found_too():
    """Its last chunk fails: what gave no token has not proved itself."""
    run = EngineRun(config(2))
    poison = Poison(run.executor, lambda start: False)
    run.executor.step_error = lambda plan: (
        poison(plan)
        or (
            RuntimeError("late")
            if any(row.start + row.num_tokens == 40 for row in plan.rows)
            else None
        )
    )
    add_many(run, 3, max_tokens=30)
    run.add(make_request("long", list(range(40)), max_tokens=5))
    run.run()
    run.check_empty()
    run.check_tokens()
    assert [n for n, finish in ends(run).items() if finish is FinishReason.ERROR] == ["long"]


@pytest.mark.parametrize("num_plans", [1, 2])
def test_what_submit_raises_waits_for_its_turn(num_plans):
    run = EngineRun(config(num_plans))
    submit, calls = run.executor.submit, []

    def failing(plan):
        calls.append(plan)
        if len(calls) == 4:
            raise RuntimeError("at once")
        submit(plan)

    run.executor.submit = failing
    add_many(run, 4)
    run.run()
    run.check_empty()
    run.check_tokens()
    assert set(ends(run).values()) == {FinishReason.LENGTH}


@pytest.mark.parametrize("num_plans", [1, 2])
def test_slots_that_a_failed_plan_should_have_ended_are_ended_later(num_plans):
    run = EngineRun(config(num_plans, batching=Batching.CONTINUOUS))
    failed = []

    def once(plan):
        if plan.ended_slots and not failed:
            failed.append(plan)
            return RuntimeError("boom")
        return None

    run.executor.step_error = once
    run.add(make_request("short", [1], max_tokens=2))
    run.add(make_request("long", [2], max_tokens=9))
    run.run()
    for name in ("c", "d"):
        run.add(make_request(name, [3], max_tokens=2))
    run.run()  # the executor refuses a slot that it was not told is free
    assert failed
    run.check_empty()
    run.check_tokens()


@pytest.mark.parametrize("num_plans", [1, 2])
def test_sequences_of_one_request_are_told_apart(num_plans):
    run = EngineRun(config(num_plans))
    request = make_request("many", list(range(9)), n=4, seed=3, max_tokens=6)
    run.add(request)
    bad = []
    Poison(run.executor, lambda start: start.seed in bad)
    run.step()
    bad.append(run.scheduler._roster.groups["many"].sequences[2].seed)
    run.run()
    run.check_empty()
    run.check_tokens()
    assert [run.outputs["many", i].finish is FinishReason.ERROR for i in range(4)] == [
        False,
        False,
        True,
        False,
    ]


def test_suspects_without_room_wait_for_those_who_go_on():
    """Without the cache their shared beginning is no longer shared: all do not fit again at once."""
    run = EngineRun(config(), num_blocks=(12,), prefix_cache=False)
    request = make_request("many", list(range(20)), n=4, max_tokens=12)
    run.add(request)
    run.executor.step_error = lambda plan: (
        RuntimeError("once") if run.executor.num_steps in (6, 9) else None
    )
    run.run()
    run.check_empty()
    run.check_tokens()
    assert all(output.finish is FinishReason.LENGTH for output in run.outputs.values())


def test_cancelling_a_suspect_and_timing_out_do_no_harm():
    run = EngineRun(config())
    add_many(run, 5, bad=(4,))
    Poison(run.executor, lambda start: start.seed == POISON)
    run.add(make_request("late", [1], max_tokens=50, deadline=run.clock.monotonic() + 0.025))
    run.step()
    run.cancel("r4")
    run.cancel("r0")
    run.run()
    run.check_empty()
    run.check_tokens()
    assert FinishReason.ERROR not in ends(run).values()


def test_bad_requests_alone_do_not_break_the_engine_but_a_dead_executor_is_told():
    run = EngineRun(config())
    Poison(run.executor, lambda start: start.seed == POISON)
    for number in range(MAX_LONE_FAILURES - 1):
        run.add(make_request(f"bad{number}", [1], seed=POISON))
        run.run()
    run.add(make_request("good", [1]))
    run.run()  # and the count begins anew
    for number in range(MAX_LONE_FAILURES + 3):
        run.add(make_request(f"worse{number}", [1], seed=POISON))
    with pytest.raises(ExecutorBrokenError):
        run.run()
    run._take(run.engine.fail_all("given up"))
    run.check_empty()


def test_the_time_of_a_step_begins_when_the_one_before_it_ended():
    run = EngineRun(config(2), seconds_per_step=0.25)
    run.add(make_request("a", [1, 2, 3], max_tokens=20))
    seconds = []
    while run.engine.has_work():
        run.step()
        seconds.append(run.engine.last_step.seconds)
    assert seconds[:19] == pytest.approx([0.25] * 19)
