"""Texts that become vectors: order, bounds, ends, and steps that fail."""

import pytest
from tests.support.engine_run import make_request

from headrace.core.events import FinishReason
from headrace.core.pooling import PoolingParams, PoolKind
from headrace.core.request import embedding_segment
from headrace.core.stats import EngineStats
from headrace.core.step import StepResult, TextResult
from headrace.engine.scheduler.texts import TextBounds, TextLane
from headrace.engine.scheduler.totals import Totals


def text(name, num_tokens=3, **fields):
    from msgspec import structs

    request = make_request(name, list(range(1, num_tokens + 1)))
    return structs.replace(request, pooling=PoolingParams(PoolKind.MEAN), **fields)


def lane(max_tokens=10, max_texts=4, max_text_tokens=20):
    return TextLane(TextBounds(max_tokens, max_texts, max_text_tokens), Totals(), aging=10.0)


def planned(plan):
    return [len(text.token_ids) for text in plan.texts]


def finish(made, plan, now=2.0):
    vectors = tuple(TextResult(bytes([i] * 4)) for i in range(len(plan.texts)))
    return made.commit(StepResult(step_id=plan.step_id, rows=(), texts=vectors), now)


def test_texts_run_in_order_as_many_as_fit():
    made = lane()
    for number, size in enumerate((4, 5, 2, 20, 1)):
        assert made.add(text(f"r{number}", size), 1.0) == []
    sizes, names = [], []
    while made.is_waiting:
        plan, events = made.schedule(1.5)
        assert events == []
        sizes.append(planned(plan))
        names += [event.request_id for event in finish(made, plan)]
    assert sizes == [[4, 5], [2], [20], [1]]
    assert names == ["r0", "r1", "r2", "r3", "r4"]
    assert not made.has_work


def test_a_vector_comes_with_its_times():
    made = lane()
    made.add(text("a"), 1.0)
    plan, _ = made.schedule(1.5)
    assert made.has_work
    assert not made.is_waiting
    (event,) = finish(made, plan)
    assert (event.finish, event.vector) == (FinishReason.STOP, b"\0\0\0\0")
    times = event.times
    assert (times.queued, times.first_scheduled, times.first_token) == (1.0, 1.5, 2.0)


def test_a_better_priority_goes_first():
    made = lane(max_texts=1)
    made.add(text("late"), 1.0)
    made.add(text("first", 5, priority=-5), 1.0)
    plan, _ = made.schedule(1.5)
    assert planned(plan) == [5]


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (text("x", 21), "takes 20"),
        (text("x", 0), "empty"),
        (text("x", n=2), "n must be 1"),
    ],
)
def test_what_cannot_run_ends_at_once(request_, sentence):
    made = lane()
    (event,) = made.add(request_, 1.0)
    assert sentence in event.error
    assert event.error_kind == "BadRequestError"
    assert not made.has_work


def test_an_id_that_runs_is_refused():
    made = lane()
    made.add(text("a"), 1.0)
    assert "running" in made.add(text("a"), 1.0)[0].error


def test_vectors_are_not_made_of_vectors():
    made = lane()
    (event,) = made.add(text("a", prompt=(embedding_segment(b"data", 10**12),)), 1.0)
    assert event.error_kind == "BadRequestError"


@pytest.mark.parametrize("is_in_flight", [False, True])
def test_a_cancelled_text_gives_nothing(is_in_flight):
    made = lane()
    made.add(text("a"), 1.0)
    made.add(text("b"), 1.0)
    plan = made.schedule(1.5)[0] if is_in_flight else None
    (event,) = made.cancel("a")
    assert event.finish is FinishReason.CANCELLED
    assert made.cancel("a") == []
    plan = plan or made.schedule(1.5)[0]
    assert [event.request_id for event in finish(made, plan)] == ["b"]


def test_time_runs_out_in_the_queue():
    made = lane(max_texts=1)
    made.add(text("late", deadline=3.0), 1.0)
    made.add(text("queued", max_queue_time=2.0), 1.0)
    made.add(text("good"), 1.0)
    plan, events = made.schedule(5.0)
    assert [(e.request_id, e.error_kind) for e in events] == [
        ("late", "DeadlineExceededError"),
        ("queued", "OverloadedError"),
    ]
    assert [event.request_id for event in finish(made, plan)] == ["good"]


def test_after_a_failed_step_texts_run_alone_and_only_the_guilty_one_fails():
    made = lane()
    for name in "abc":
        made.add(text(name), 1.0)
    made.schedule(1.5)
    assert made.recover("It failed.") == []
    ended = []
    for guilty in (False, True, False):
        plan, _ = made.schedule(2.0)
        assert len(plan.texts) == 1
        ended += made.recover("It failed.") if guilty else finish(made, plan)
    assert [(event.request_id, event.finish) for event in ended] == [
        ("a", FinishReason.STOP),
        ("b", FinishReason.ERROR),
        ("c", FinishReason.STOP),
    ]
    assert not made.has_work


def test_all_fail_together():
    made = lane(max_texts=1)
    made.add(text("a"), 1.0)
    made.add(text("b"), 1.0)
    made.schedule(1.5)
    assert {event.request_id for event in made.fail_all("Broken.")} == {"a", "b"}
    assert not made.has_work


def test_a_text_without_a_finite_vector_fails_alone():
    made = lane()
    made.add(text("a"), 1.0)
    made.add(text("b"), 1.0)
    plan, _ = made.schedule(1.5)
    result = StepResult(
        step_id=plan.step_id, rows=(), texts=(TextResult(error="Not finite."), TextResult(b"1234"))
    )
    first, second = made.commit(result, 2.0)
    assert (first.error, second.vector) == ("Not finite.", b"1234")


def test_gauges_count_texts_too():
    made = lane(max_texts=1)
    made.add(text("a", 4), 1.0)
    made.add(text("b", 5), 2.0)
    made.schedule(3.0)
    added = made.add_to(EngineStats(num_running=2, waiting_tokens=10), 4.0)
    assert added == {
        "num_running": 3,
        "num_waiting": 1,
        "waiting_tokens": 15,
        "oldest_wait": 2.0,
    }
