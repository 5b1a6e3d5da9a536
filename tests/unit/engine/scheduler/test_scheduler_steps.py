"""What a step may hold: budget, order, chunks, memory, preemption."""

import pytest
from tests.support.engine_run import EngineRun, make_request

from headrace.config.engine import Batching, SchedulerConfig
from headrace.core.events import FinishReason
from headrace.core.step import OutputKind
from headrace.engine.scheduler.drafts import MAX_DRAFTS


def tokens(count, first=1):
    return [(first + 7 * i) % 60 for i in range(count)]


def shapes(run):
    """Rows of each plan as (slot, tokens)."""
    return [[(row.slot, row.num_tokens) for row in plan.rows] for plan in run.executor.plans]


def test_a_long_prompt_is_chunked_and_running_streams_come_first():
    run = EngineRun(SchedulerConfig(max_num_batched_tokens=8))
    run.add(make_request("short", [1, 2], max_tokens=6))
    run.step()
    run.add(make_request("long", tokens(20), max_tokens=2))
    run.run()
    assert shapes(run)[:5] == [
        [(0, 2)],
        [(0, 1), (1, 7)],
        [(0, 1), (1, 7)],
        [(0, 1), (1, 6)],
        [(0, 1), (1, 1)],
    ]
    outputs = [row.output for row in run.executor.plans[2].rows]
    assert outputs == [OutputKind.SAMPLE, OutputKind.NONE]
    run.check_tokens()


def test_without_chunking_a_prompt_runs_whole_even_above_the_budget():
    run = EngineRun(SchedulerConfig(max_num_batched_tokens=8, chunked_prefill=False))
    run.add(make_request("a", tokens(20), max_tokens=3))
    run.add(make_request("b", tokens(5, 2), max_tokens=3))
    run.add(make_request("c", tokens(3, 3), max_tokens=3))
    run.run()
    assert shapes(run)[:3] == [[(0, 20)], [(0, 1), (1, 5)], [(0, 1), (1, 1), (2, 3)]]
    run.check_tokens()


def test_more_rows_than_the_budget_never_run():
    run = EngineRun(SchedulerConfig(max_num_batched_tokens=3, max_num_seqs=8))
    for number in range(6):
        run.add(make_request(f"r{number}", [number], max_tokens=5))
    run.run()
    assert max(plan.num_tokens for plan in run.executor.plans) == 3
    run.check_empty()


def test_itl_target_bounds_the_prefill_beside_running_streams():
    """A long prompt that arrives beside a stream may not stretch its steps beyond the target."""
    run = EngineRun(
        SchedulerConfig(max_num_batched_tokens=512, itl_target=0.050), num_blocks=(400,)
    )
    run.executor.seconds_of = lambda plan: 0.010 + 0.001 * (plan.num_tokens - 1)
    run.add(make_request("stream", [1, 2], max_tokens=100))
    for _ in range(5):
        run.step()
    run.add(make_request("intruder", tokens(600), max_tokens=2))
    first = len(run.executor.plans)
    run.run()
    mixed = [p.num_tokens for p in run.executor.plans[first:] if p.num_tokens > 2]
    assert max(mixed) <= 50
    assert sum(mixed) / len(mixed) > 25  # and it is used
    run.check_tokens()


def test_the_gate_lets_in_only_prompts_that_can_be_finished():
    run = EngineRun(SchedulerConfig(max_num_batched_tokens=4), num_blocks=(8,))
    run.add(make_request("a", tokens(20), max_tokens=2))
    run.add(make_request("b", tokens(16, 3), max_tokens=2))  # 4 of the 3 blocks left
    run.step()
    assert run.engine.stats().num_running == 1
    run.run()
    assert run.engine.stats().preemptions == 0
    run.check_tokens()


def test_a_prompt_that_needs_every_block_is_let_in_when_it_is_alone():
    run = EngineRun(num_blocks=(4,))
    run.add(make_request("small", [1], max_tokens=4))
    run.add(make_request("all", tokens(15), max_tokens=9))
    run.add(make_request("behind", [2], max_tokens=4))
    run.run()
    assert len(run.tokens("all")) == 1  # what the memory holds
    assert run.outputs["all", 0].finish is FinishReason.LENGTH
    # Nobody passed the big one while it waited for room.
    assert run.outputs["all", 0].events[0].times.first_token <= (
        run.outputs["behind", 0].events[0].times.first_token
    )
    run.check_empty()


def test_the_youngest_of_the_lowest_priority_gives_way_and_comes_back_cheaply():
    run = EngineRun(SchedulerConfig(max_num_batched_tokens=64), num_blocks=(17,))
    run.add(make_request("first", tokens(8, 1), max_tokens=20, priority=1))
    run.add(make_request("urgent", tokens(8, 2), max_tokens=20, priority=0))
    run.add(make_request("last", tokens(8, 3), max_tokens=20, priority=1))
    run.run()
    restarts = [(p, s) for p in run.executor.plans for s in p.starts if len(s.token_ids) > 8]
    assert run.engine.stats().preemptions == len(restarts) == 1
    plan, start = restarts[0]
    assert start.token_ids[:8] == tokens(8, 3)
    # Its published blocks were found again: it computes only what follows them.
    (row,) = [row for row in plan.rows if row.slot == start.slot]
    assert row.start >= 8
    run.check_empty()
    run.check_tokens()


def test_low_priority_is_not_starved_by_a_stream_of_urgent_requests():
    config = SchedulerConfig(max_num_seqs=1, priority_aging=0.5)
    run = EngineRun(config, seconds_per_step=0.1)
    run.add(make_request("patient", [1, 2], max_tokens=2, priority=2))
    for number in range(40):
        run.add(make_request(f"urgent{number}", [3], max_tokens=2))
        run.step()
        run.step()
        if run.outputs["patient", 0].finish:
            break
    # Two levels at half a second each: it passes whoever came more than a second after it.
    assert 5 <= number <= 8
    run.run()


def test_without_aging_priority_is_absolute():
    run = EngineRun(SchedulerConfig(max_num_seqs=1, priority_aging=0.0), seconds_per_step=1.0)
    run.add(make_request("low", [1], max_tokens=1, priority=5))
    for number in range(10):
        run.add(make_request(f"high{number}", [2], max_tokens=1))
    run.run()
    order = [p.starts[0].token_ids for p in run.executor.plans if p.starts]
    assert order == [[2]] * 10 + [[1]]


@pytest.mark.parametrize("num_plans", [1, 2])
def test_prompts_that_wait_for_each_other_are_set_free(num_plans):
    """Two prompts that both cannot grow: the worst rank gives way, once nothing is in flight."""
    run = EngineRun(SchedulerConfig(max_num_batched_tokens=8, max_uncommitted_plans=num_plans))
    reserve = run.ledger.reserve
    run.ledger.reserve = lambda blocks, start, end: reserve(blocks, start, min(end, start + 2))
    run.add(make_request("a", tokens(12), max_tokens=2))
    run.add(make_request("b", tokens(12, 2), max_tokens=2))
    run.step()
    assert run.engine.stats().num_running == 2
    run.ledger.reserve = lambda blocks, start, end: 0
    for _ in range(4):
        run.step()
    stats = run.engine.stats()
    assert (stats.preemptions, stats.num_running) == (1, 1)
    assert run.scheduler._roster.running[0].group.request.request_id == "a"
    run.ledger.reserve = reserve
    run.run()
    run.check_empty()
    run.check_tokens()


def test_a_request_whose_blocks_are_loading_is_passed_but_not_forgotten():
    run = EngineRun()
    prompt = tokens(9)
    chain = run.ledger.chain(None, b"")
    chain.extend(prompt, 2)
    block = run.ledger.start_load(0, chain.hashes[0])
    run.add(make_request("loading", prompt, max_tokens=2))
    run.add(make_request("other", [1, 2], max_tokens=2))
    run.step()
    assert len(run.tokens("other")) == 1
    assert run.tokens("loading") == []
    run.ledger.finish_load(0, block, is_good=False)
    run.run()
    run.check_empty()
    run.check_tokens()


class FromReference:
    """Guesses the true continuation, with every third guess wrong."""

    def __init__(self, run):
        self.run = run
        self.ended_ids = []

    def propose(self, request_id, index, token_ids, max_tokens):
        assert max_tokens <= MAX_DRAFTS
        request = self.run.requests[request_id]
        known = len(token_ids) - request.num_prompt_tokens
        truth = self.run.reference(request_id, index)[known : known + max_tokens]
        return [t if (known + i) % 3 else t + 1 for i, t in enumerate(truth)]

    def ended(self, request_id, index):
        self.ended_ids.append((request_id, index))


@pytest.mark.parametrize("num_plans", [1, 2])
def test_drafts_change_the_speed_and_nothing_else(num_plans):
    run = EngineRun(SchedulerConfig(max_num_batched_tokens=16, max_uncommitted_plans=num_plans))
    source = FromReference(run)
    run.scheduler._planner._draft_source = run.scheduler._drafts = source
    run.add(make_request("a", tokens(6), max_tokens=30, eos=(0,), logprobs=1))
    run.add(make_request("b", tokens(5, 2), max_tokens=30, seed=2))
    run.step()
    for _ in range(4):
        run.step()
        # Rejected guesses gave their blocks back.
        for sequence in run.scheduler._roster.running:
            if not sequence.num_in_flight:
                assert sequence.blocks.capacity < len(sequence.tokens) + 4
    run.run()
    run.check_empty()
    run.check_tokens()
    assert max(len(event.token_ids) for event in run.outputs["b", 0].events) == 3
    assert len(run.outputs["b", 0].events) < 20
    assert all(len(e.logprobs) == len(e.token_ids) for e in run.outputs["a", 0].events)
    assert sorted(source.ended_ids) == [("a", 0), ("b", 0)]


def test_a_draft_source_that_raises_leaves_nothing_behind():
    run = EngineRun()

    class Broken:
        def propose(self, request_id, index, token_ids, max_tokens):
            raise RuntimeError("no idea")

        def ended(self, request_id, index):
            pass

    run.add(make_request("a", tokens(6), max_tokens=6, n=3))
    run.step()
    run.scheduler._planner._draft_source = Broken()
    with pytest.raises(RuntimeError):
        run.step()
    run._take(run.engine.fail_all("a step failed"))
    run.scheduler._planner._draft_source = None
    run.check_empty()
    run.add(make_request("b", tokens(6), max_tokens=6, n=3))
    run.run()
    run.check_empty()
    run.check_tokens()


def test_a_plan_that_broke_off_leaves_no_copies_for_the_next():
    run = EngineRun()
    run.add(make_request("a", tokens(6), max_tokens=6, n=3))
    run.step()
    calls = []

    def allows(sequence):
        calls.append(sequence)
        if len(calls) == 2:
            raise RuntimeError("broke off after the first fork")
        return True

    run.scheduler._planner.policy.allows = allows
    with pytest.raises(RuntimeError):
        run.step()
    run._take(run.engine.fail_all("a step failed"))
    run.check_empty()
    run.add(make_request("b", tokens(6), max_tokens=6))
    run.run()
    assert all(not plan.block_copies for plan in run.executor.plans)
    run.check_tokens()


@pytest.mark.parametrize("num_plans", [1, 2])
def test_a_row_that_fails_takes_its_cached_beginning_with_it(num_plans):
    """Chunks without logits are not checked: their blocks are published before the fault shows."""
    run = EngineRun(SchedulerConfig(max_num_batched_tokens=8, max_uncommitted_plans=num_plans))
    prompt = tokens(20)
    run.executor.row_error = lambda plan, row: "not finite" if row.output else None
    run.add(make_request("a", prompt))
    run.run()
    assert run.outputs["a", 0].finish is FinishReason.ERROR
    run.executor.row_error = None
    run.add(make_request("b", prompt))
    run.run()
    assert run.outputs["b", 0].events[0].num_cached_tokens == 0
    run.check_empty()
    run.check_tokens()


def test_overlap_plans_the_next_token_before_this_one_is_known():
    run = EngineRun(SchedulerConfig(max_uncommitted_plans=2))
    run.add(make_request("a", [1, 2, 3], max_tokens=4))
    run.run()
    assert [row.token_ids for plan in run.executor.plans for row in plan.rows] == [
        [1, 2, 3],
        [],
        [],
        [],
    ]
    # max_tokens is known beforehand, so no row was planned for nothing.
    assert run.executor.num_steps == 4
    run.check_tokens()


def test_rows_of_a_sequence_that_turned_out_to_have_ended_are_void():
    run = EngineRun(SchedulerConfig(max_uncommitted_plans=2), vocab_size=4)
    run.add(make_request("a", [1, 2, 3], max_tokens=50, eos=(0, 1)))
    run.run()
    assert run.outputs["a", 0].finish is FinishReason.STOP
    assert run.executor.num_steps == len(run.tokens("a")) + 1
    run.check_empty()
    run.check_tokens()


@pytest.mark.parametrize("batching", [Batching.STATIC, Batching.DYNAMIC])
def test_a_batch_runs_to_its_end_before_the_next_one_starts(batching):
    run = EngineRun(SchedulerConfig(batching=batching, batch_size=2, batch_window=0.05))
    for name, count in (("a", 2), ("b", 9), ("c", 3)):
        run.add(make_request(name, [1], max_tokens=count, seed=ord(name)))
    run.step()
    assert run.engine.stats().num_running == 2
    for _ in range(4):
        run.step()
    run.add(make_request("d", [1], max_tokens=3))
    assert (run.engine.stats().num_running, run.engine.stats().num_waiting) == (1, 2)
    run.run()
    starts = [len(plan.starts) for plan in run.executor.plans if plan.starts]
    assert starts == [2, 2]
    run.check_empty()
    run.check_tokens()


def test_partial_batches_start_by_time_and_say_when():
    for batching, expected in ((Batching.DYNAMIC, 0.05), (Batching.STATIC, 0.08)):
        run = EngineRun(SchedulerConfig(batching=batching, batch_size=9, batch_window=0.05))
        began = run.clock.monotonic()
        run.add(make_request("a", [1], max_tokens=1))
        run.clock.advance(0.03)
        run.add(make_request("b", [1], max_tokens=1))
        assert run.scheduler.wake_at() == pytest.approx(began + expected)
        run.step()
        assert run.executor.num_steps == 0
        run.clock.advance(expected - 0.03)
        run.step()
        assert run.executor.num_steps == 1
        run.check_empty()


def test_continuous_batching_needs_fewer_steps_than_static():
    steps = {}
    for batching in Batching:
        run = EngineRun(SchedulerConfig(batching=batching, batch_size=4, max_num_seqs=4))
        for number in range(12):
            run.add(make_request(f"r{number}", [number], max_tokens=3 + 9 * (number % 3)))
        run.run()
        run.check_tokens()
        steps[batching] = run.executor.num_steps
    assert steps[Batching.CONTINUOUS] < steps[Batching.STATIC]


def test_no_step_is_longer_than_it_should_be_on_a_slow_machine():
    """A quarter of a second a token: the first step is small, and later ones last as long as they may."""
    run = EngineRun(SchedulerConfig(max_num_batched_tokens=512, max_step_time=10.0))
    run.executor.seconds_of = lambda plan: 0.25 * plan.num_tokens
    run.add(make_request("a", tokens(200), max_tokens=3))
    run.run()
    sizes = [plan.num_tokens for plan in run.executor.plans]
    assert sizes == [16, 40, 40, 40, 40, 24, 1, 1]
    run.check_tokens()


def test_waiting_on_purpose_is_told():
    run = EngineRun(SchedulerConfig(batching=Batching.STATIC, batch_size=2, batch_window=30.0))
    due = run.clock.monotonic() + 30.0
    run.add(make_request("a", [1], max_tokens=9))
    run.step()
    assert run.engine.wake_at() == run.engine.stats().waits_until == due
    run.add(make_request("b", [1], max_tokens=9, max_queue_time=5.0))
    run.step()
    assert run.engine.wake_at() is None  # it runs
    assert run.engine.stats().waits_until == 0.0
    run.add(make_request("c", [1], max_tokens=9))
    run.step()
    assert run.engine.wake_at() is None
    run.run()
    run.add(make_request("d", [1], max_tokens=9, max_queue_time=5.0))
    run.step()
    assert run.engine.wake_at() == pytest.approx(run.clock.monotonic() + 5.0)  # it leaves before
