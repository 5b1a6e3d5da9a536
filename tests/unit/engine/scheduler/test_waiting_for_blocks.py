"""Sequences whose blocks are on their way from the tier below."""

import pytest
from tests.support.engine_run import EngineRun, make_request
from tests.support.fake_tier import FakeTier

from headrace.config.engine import SchedulerConfig
from headrace.engine.memory.loads import MAX_LOAD_SECONDS

PROMPT = [number % 7 for number in range(21)]
CONFIG = SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=4)


def filled_tier(**knobs):
    """What an engine stored that ran PROMPT."""
    tier = FakeTier()
    EngineRun(CONFIG, tier=tier).run_all([make_request("first", PROMPT)])
    assert len(tier.blocks) >= len(PROMPT) // 4
    for name, value in knobs.items():
        setattr(tier, name, value)
    return tier


def test_others_go_on_while_a_prefix_is_loaded():
    run = EngineRun(CONFIG, tier=filled_tier(delay=lambda load: 30))
    run.add(make_request("late", PROMPT))
    run.add(make_request("soon", [1, 2, 3], max_tokens=4))
    while run.outputs["soon", 0].finish is None:
        run.step()
    assert not run.outputs["late", 0].events
    assert run.ledger.usage().pending == 5
    run.run()
    run.check_empty()
    run.check_tokens()
    assert run.outputs["late", 0].events[0].num_cached_tokens == 20
    assert sum(len(plan.block_loads) for plan in run.executor.plans) == 5


def test_an_idle_engine_sends_loads_in_a_plan_without_rows():
    run = EngineRun(CONFIG, tier=filled_tier(delay=lambda load: 2))
    run.add(make_request("a", PROMPT))
    run.step()
    (plan,) = run.executor.plans
    assert (plan.rows, len(plan.block_loads)) == ((), 5)
    assert run.engine.is_waiting
    assert run.engine.wake_at() is None
    run.run()
    run.check_tokens()


@pytest.mark.parametrize("num_good", [0, 2])
def test_what_cannot_be_loaded_is_computed(num_good):
    tier = filled_tier()
    order = list(tier.blocks)
    tier.fails = lambda load: order.index((load.group, load.key)) >= num_good
    run = EngineRun(CONFIG, tier=tier)
    run.run_all([make_request("a", PROMPT)])
    assert run.outputs["a", 0].events[0].num_cached_tokens == 4 * num_good


def test_any_number_of_waiting_sequences_holds_nobody_up():
    run = EngineRun(CONFIG, num_blocks=(200,), tier=filled_tier(delay=lambda load: 40))
    for number in range(20):
        run.add(make_request(f"late{number}", PROMPT))
    run.add(make_request("soon", [1, 2, 3], max_tokens=4))
    while run.outputs["soon", 0].finish is None:
        run.step()
        assert run.executor.num_steps < 40
    assert run.ledger.usage().pending == 5
    run.run()
    run.check_empty()
    run.check_tokens()


def test_a_load_outlives_the_request_that_asked_for_it():
    run = EngineRun(CONFIG, tier=filled_tier(delay=lambda load: 3))
    run.add(make_request("a", PROMPT))
    run.step()
    run.cancel("a")
    assert run.engine.has_work()
    run.run()
    assert run.ledger.usage().pending == 0
    assert run.ledger.usage().cached == 5


def test_a_load_that_hangs_is_waited_for_only_so_long():
    run = EngineRun(CONFIG, tier=filled_tier(delay=lambda load: 10**9))
    run.add(make_request("a", PROMPT))
    run.step()
    run.step()
    assert not run.outputs["a", 0].events
    run.clock.advance(MAX_LOAD_SECONDS + 1)
    run.run()
    run.check_tokens()
    assert run.outputs["a", 0].events[0].num_cached_tokens == 0
    assert not run.engine.has_work()


def test_after_all_was_ended_loads_still_come_to_an_end():
    run = EngineRun(CONFIG, tier=filled_tier(delay=lambda load: 3))
    run.add(make_request("a", PROMPT))
    run.step()
    run._take(run.engine.fail_all("the books are in doubt"))
    run.add(make_request("b", PROMPT))
    run.run()
    run.check_empty()
    run.check_tokens()
    assert run.ledger.usage().pending == 0


def test_a_plan_with_nothing_but_transfers_that_always_fails_ends_in_an_error_not_in_circles():
    run = EngineRun(CONFIG, tier=filled_tier())
    run.executor.step_error = lambda plan: RuntimeError("no") if plan.block_loads else None
    run.add(make_request("a", PROMPT))
    with pytest.raises(Exception, match="failed one after another"):
        run.run()
