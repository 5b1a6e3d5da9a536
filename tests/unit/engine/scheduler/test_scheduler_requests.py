"""Requests: what ends them, n > 1, continuation, time-outs, refusals, numbers."""

import msgspec
import pytest
from tests.support.engine_run import EngineRun, make_request

from headrace.config.engine import SchedulerConfig
from headrace.core.beams import BeamSearch
from headrace.core.errors import InternalError
from headrace.core.events import FinishReason
from headrace.core.request import (
    MEDIA_TOKEN_ID,
    EmbeddingSegment,
    KVPolicy,
    KVPolicyKind,
    Request,
    TokenSegment,
    embedding_segment,
)
from headrace.core.sampling import SamplingParams
from headrace.core.step import StepResult

SEARCH = BeamSearch(width=1)


def tokens(count, first=1):
    return [(first + 7 * i) % 60 for i in range(count)]


def only(run, request_id="a", index=0):
    (event,) = run.outputs[request_id, index].events
    return event


# ---- ends ------------------------------------------------------------------------------------------


def test_a_stop_token_ends_the_output_and_is_named():
    run = EngineRun(vocab_size=5)
    run.add(make_request("a", [1], max_tokens=99, eos=(0,), stop_token_ids=(3,)))
    run.run()
    last = run.outputs["a", 0].events[-1]
    assert last.finish is FinishReason.STOP
    assert last.stop_token_id == run.tokens("a")[-1]
    assert last.stop_token_id in (0, 3)
    assert not {0, 3} & set(run.tokens("a")[:-1])
    run.check_tokens()


def test_ignore_eos_goes_on_to_max_tokens_and_min_tokens_masks():
    run = EngineRun(vocab_size=3)
    run.add(make_request("a", [1], max_tokens=40, eos=(0,), ignore_eos=True))
    run.add(make_request("b", [2], max_tokens=40, eos=(0,), min_tokens=30))
    run.run()
    assert run.outputs["a", 0].finish is FinishReason.LENGTH
    assert 0 in run.tokens("a")
    assert 0 not in run.tokens("b")[:30]
    assert run.outputs["b", 0].finish is FinishReason.STOP
    run.check_tokens()


def test_max_tokens_is_clamped_to_the_room_and_others_are_not_touched():
    run = EngineRun(max_context=16)
    run.add(make_request("long", tokens(12), max_tokens=500))
    run.add(make_request("other", tokens(3), max_tokens=8))
    run.add(make_request("too-long", tokens(16), max_tokens=1, n=2))
    run.run()
    assert len(run.tokens("long")) == 4
    assert run.outputs["long", 0].finish is FinishReason.LENGTH
    assert len(run.tokens("other")) == 8
    for index in (0, 1):
        event = only(run, "too-long", index)
        assert (event.finish, event.error_kind) == (FinishReason.ERROR, "PromptTooLongError")
        assert "16" in event.error
    run.check_empty()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"prompt": ()}, "empty"),
        ({"n": 0}, "n must"),
        ({"prompt": (EmbeddingSegment(b"d", 1, b"data"),)}, "digest"),
        ({"prompt": (embedding_segment(b"data", 0),)}, "at least one"),
        ({"prompt": (embedding_segment(b"data", -1),)}, "at least one"),
        ({"prompt": (embedding_segment(b"data", 10**12),)}, "float32"),
        ({"prompt": (embedding_segment(b"data data", 2),)}, "float32"),
        (
            {
                "prompt": (embedding_segment(b"data", 1),),
                "params": SamplingParams(prompt_logprobs=1),
            },
            "log-probabilities",
        ),
        ({"prompt": (TokenSegment([MEDIA_TOKEN_ID]),)}, "out of range"),
        ({"adapter": "x"}, "adapter"),
        ({"kv_policy": KVPolicy(KVPolicyKind.EVICT)}, "window"),
        ({"kv_policy": KVPolicy(KVPolicyKind.EVICT, -1, 4)}, "window"),
        ({"kv_policy": KVPolicy(KVPolicyKind.EVICT, 0, 4), "beams": SEARCH}, "search"),
        ({"kv_policy": KVPolicy(KVPolicyKind.WINDOW)}, "window"),
        ({"prior_output_ids": [-1]}, "range"),
        ({"prior_output_ids": [2**31]}, "range"),
    ],
)
def test_what_cannot_run_is_refused_with_a_sentence(change, word):
    run = EngineRun()
    base = make_request("a", [1])
    fields = {name: getattr(base, name) for name in base.__struct_fields__}
    (event,) = run.scheduler.add(Request(**{**fields, **change}), 0.0)
    assert event.error_kind == ("NotFoundError" if "adapter" in change else "BadRequestError")
    assert word in event.error
    run.check()
    assert not run.engine.has_work()


def test_an_id_in_use_is_refused_and_the_first_request_goes_on():
    run = EngineRun()
    run.add(make_request("a", [1], max_tokens=3))
    (event,) = run.scheduler.add(make_request("a", [2]), 0.0)
    assert event.error_kind == "BadRequestError"
    run.run()
    assert run.outputs["a", 0].finish is FinishReason.LENGTH
    run.check()


# ---- n > 1 -----------------------------------------------------------------------------------------


def test_siblings_share_the_prompt_and_differ_by_seed():
    run = EngineRun(num_blocks=(40,))
    run.add(make_request("a", tokens(18), max_tokens=8, n=4))
    run.run()
    run.check_empty()
    run.check_tokens()
    assert len({tuple(run.tokens("a", index)) for index in range(4)}) == 4
    first, second, *_ = run.executor.plans
    assert [row.num_tokens for row in first.rows] == [18]
    assert [row.num_tokens for row in second.rows] == [1, 1, 1, 1]  # only the last prompt token
    assert len(second.block_copies) == 3
    held = {tuple(w.block_ids[:4]) for w in second.block_writes if len(w.block_ids) > 1}
    assert len(held) == 1


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("length", [16, 17])
def test_siblings_that_come_late_still_fork_or_find_the_cache(prefix_cache, length):
    run = EngineRun(SchedulerConfig(max_num_seqs=2), prefix_cache=prefix_cache)
    run.add(make_request("a", tokens(length), max_tokens=7, n=5))
    run.run()
    run.check_empty()
    run.check_tokens()
    computed = sum(plan.num_tokens for plan in run.executor.plans)
    assert computed < length + 5 * 7 + 4 * 4


def test_one_index_or_all_can_be_cancelled_and_a_sibling_takes_over_the_prompt():
    run = EngineRun(SchedulerConfig(max_num_batched_tokens=4))
    run.add(make_request("a", tokens(10), max_tokens=4, n=3))
    run.step()
    held = run.ledger.usage().held
    run.cancel("a", 0)
    assert held > run.ledger.usage().held == 0
    run.run()
    assert run.outputs["a", 0].finish is FinishReason.CANCELLED
    assert [run.outputs["a", i].finish for i in (1, 2)] == [FinishReason.LENGTH] * 2
    run.add(make_request("b", tokens(10), max_tokens=4, n=3))
    run.step()
    run.cancel("b")
    assert not run.engine.has_work()
    run.cancel("b")
    run.cancel("unknown", 3)
    run.check_empty()
    run.check_tokens()


# ---- continuation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 5, 11])
def test_prior_output_continues_exactly(cut):
    run = EngineRun()
    run.add(make_request("whole", tokens(6), max_tokens=12, min_tokens=3, eos=(0,)))
    run.run()
    output = run.tokens("whole")
    again = EngineRun()
    again.add(
        make_request("rest", tokens(6), max_tokens=12, min_tokens=3, eos=(0,), prior=output[:cut])
    )
    again.run()
    assert again.tokens("rest") == output[cut:]
    start = again.executor.plans[0].starts[0]
    assert start.num_prompt_tokens == 6
    assert again.executor.plans[0].rows[-1].first_output == cut


def test_prior_output_that_is_complete_ends_at_once():
    run = EngineRun()
    run.add(make_request("length", [1], max_tokens=2, prior=[5, 6], n=2))
    run.add(make_request("stop", [1], max_tokens=9, prior=[5, 3], stop_token_ids=(3,)))
    assert only(run, "length", 1).finish is FinishReason.LENGTH
    assert only(run, "stop").stop_token_id == 3
    assert not run.engine.has_work()
    run.check_empty()


# ---- time ------------------------------------------------------------------------------------------


def test_a_running_request_times_out_and_its_blocks_are_free():
    run = EngineRun(seconds_per_step=1.0)
    now = run.clock.monotonic()
    run.add(make_request("a", [1], max_tokens=99, n=2, deadline=now + 3.5))
    run.run()
    for index in (0, 1):
        output = run.outputs["a", index]
        assert output.finish is FinishReason.TIMEOUT
        assert output.events[-1].error is None
    assert len(run.tokens("a")) == 4
    run.check_empty()
    run.check_tokens()


def test_waiting_too_long_is_an_error_with_its_kind():
    run = EngineRun(SchedulerConfig(max_num_seqs=1), seconds_per_step=1.0)
    now = run.clock.monotonic()
    run.add(make_request("busy", [1], max_tokens=9))
    run.add(make_request("queue", [1], max_queue_time=2.0, deadline=now + 50))
    run.add(make_request("late", [1], deadline=now + 3.0, n=2))
    run.run()
    assert only(run, "queue").error_kind == "OverloadedError"
    assert only(run, "late", 1).error_kind == "DeadlineExceededError"
    assert only(run, "late").finish is FinishReason.ERROR
    assert run.outputs["busy", 0].finish is FinishReason.LENGTH
    run.check_empty()


def test_queue_time_does_not_end_what_has_begun():
    run = EngineRun(SchedulerConfig(max_num_seqs=1), seconds_per_step=1.0)
    run.add(make_request("a", [1], max_tokens=5, n=2, max_queue_time=2.0))
    run.run()
    assert [run.outputs["a", i].finish for i in (0, 1)] == [FinishReason.LENGTH] * 2


def test_gates_are_timed_on_the_first_and_the_last_event():
    run = EngineRun(SchedulerConfig(max_num_seqs=1), seconds_per_step=1.0)
    began = run.clock.monotonic()
    run.add(make_request("first", [1], max_tokens=2))
    run.add(make_request("second", [1], max_tokens=3))
    run.run()
    first, middle, last = run.outputs["second", 0].events
    assert middle.times is None
    assert first.times == last.times
    assert (first.times.queued, first.times.first_scheduled, first.times.first_token) == (
        began,
        began + 2,
        began + 3,
    )


def test_cached_tokens_are_told_once():
    run = EngineRun()
    run.add(make_request("a", tokens(13), max_tokens=2))
    run.run()
    run.add(make_request("b", tokens(13), max_tokens=2, n=2))
    run.run()
    assert [e.num_cached_tokens for e in run.outputs["a", 0].events] == [0, 0]
    for index in (0, 1):
        assert [e.num_cached_tokens for e in run.outputs["b", index].events] == [12, 0]
    stats = run.engine.stats()
    assert stats.prompt_tokens == 39
    assert stats.cached_tokens == 24  # 12 from the cache, 12 from the sibling
    assert stats.generated_tokens == 6


# ---- policy, numbers, robustness -------------------------------------------------------------------


def test_a_kv_window_gives_old_blocks_back_and_publishes_nothing_more():
    run = EngineRun(num_blocks=(6,))
    base = make_request("a", tokens(8), max_tokens=60)
    fields = {name: getattr(base, name) for name in base.__struct_fields__}
    policy = KVPolicy(KVPolicyKind.WINDOW, num_sinks=4, window=8)
    request = Request(**{**fields, "kv_policy": policy, "params": SamplingParams(max_tokens=12)})
    run.executor.windows = (1,)  # the double would notice keys that are not there
    run.add(request)
    held = 0
    while run.engine.has_work():
        run.step()
        held = max(held, run.ledger.usage().held)
    assert held <= 4  # one block of sinks, and three that a window of 8 can touch
    stored = [e for e in run.scheduler.take_kv_events() if hasattr(e, "token_ids")]
    assert sum(len(e.block_hashes) for e in stored) <= 3


@pytest.mark.parametrize("kind", list(KVPolicyKind))
def test_the_operators_kv_policy_is_for_requests_without_one(kind):
    config = SchedulerConfig(kv_policy=kind.value, kv_policy_tokens=9, kv_policy_sinks=2)
    run = EngineRun(config)
    own = KVPolicy(KVPolicyKind.EVICT, 1, 5)
    run.add(make_request("a", tokens(8)))
    run.add(make_request("b", tokens(8), kv_policy=own))
    run.scheduler.add(msgspec.structs.replace(make_request("c", tokens(8)), beams=SEARCH), 0.0)
    policies = {name: group.policy for name, group in run.scheduler._roster.groups.items()}
    assert policies == {"a": KVPolicy(kind, 2, 9), "b": own, "c": KVPolicy()}


def test_stats_say_what_waits_and_what_runs():
    run = EngineRun(SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=4))
    run.add(make_request("a", tokens(10), max_tokens=5))
    run.add(make_request("b", tokens(7), max_tokens=5, n=2))
    run.clock.advance(2.0)
    run.step()
    stats = run.engine.stats()
    assert (stats.num_running, stats.num_waiting) == (1, 2)
    assert stats.waiting_tokens == 8
    assert stats.running_tokens == 10 - 4 + 5 - 1
    assert stats.oldest_wait == pytest.approx(2.01)
    assert (stats.blocks_total, stats.block_size, stats.started) == (64, 4, 3)
    assert stats.step_seconds == pytest.approx(0.01)
    run.run()
    assert run.engine.stats().finished["length"] == 3


def test_a_result_that_is_not_the_oldest_plan_is_refused():
    run = EngineRun()
    run.add(make_request("a", [1]))
    plan, _ = run.scheduler.schedule(run.clock.monotonic())
    for result in (
        StepResult(step_id=plan.step_id + 1, rows=()),
        StepResult(step_id=plan.step_id, rows=()),
    ):
        with pytest.raises(InternalError):
            run.scheduler.commit(result, run.clock.monotonic())
    # One plan may be in flight, and one is.
    assert run.scheduler.schedule(run.clock.monotonic()) == (None, [])


def test_kv_events_follow_what_is_published():
    run = EngineRun(block_size=4)
    run.add(make_request("a", tokens(9), max_tokens=4))
    run.run()
    events = run.scheduler.take_kv_events()
    told = [t for e in events for t in e.token_ids]
    assert told == [*tokens(9), *run.tokens("a")][: len(told)]
    assert len(told) == 12


def test_a_model_without_room_for_vectors_takes_text_only():
    run = EngineRun()
    run.scheduler._embedding_size = 0
    request = make_request("a", [1])
    segment = embedding_segment(b"data", 1)
    (event,) = run.scheduler.add(msgspec.structs.replace(request, prompt=(segment,)), 0.0)
    assert "text only" in event.error
