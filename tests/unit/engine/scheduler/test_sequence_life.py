"""Sequences: legal moves, seeds, rank; the queue and the deadlines that hold them."""

import pytest
from tests.support.engine_run import make_request

from headrace.core.errors import InternalError
from headrace.core.events import FinishReason
from headrace.engine.scheduler.deadlines import Deadlines
from headrace.engine.scheduler.queue import WaitingQueue
from headrace.engine.scheduler.sequence import (
    Sequence,
    SequenceGroup,
    SequenceState,
    derive_seed,
)


def make(name="a", *, order=1, now=100.0, aging=10.0, index=0, **options):
    group = SequenceGroup(
        make_request(name, [1, 2, 3], **options), order=order, now=now, aging=aging, room=1000
    )
    sequence = Sequence(group, index, None)
    group.sequences = (sequence,)
    return sequence


def test_illegal_moves_raise():
    sequence = make()
    with pytest.raises(InternalError):
        sequence.enqueue()  # it waits already
    with pytest.raises(InternalError):
        sequence.preempt(0.0)  # it does not run
    sequence.end(FinishReason.STOP)
    for move in (sequence.enqueue, lambda: sequence.end(FinishReason.STOP)):
        with pytest.raises(InternalError):
            move()
    held = make(index=1)
    assert held.state is SequenceState.HELD
    held.enqueue()
    assert held.state is SequenceState.WAITING


def test_a_new_life_makes_old_rows_void():
    sequence = make()
    life = sequence.life
    sequence.end(FinishReason.CANCELLED)
    assert sequence.life != life


def test_seeds_of_one_request_differ_and_are_stable():
    assert derive_seed(42, 0) == 42
    seeds = {derive_seed(42, index) for index in range(16)} | {derive_seed(43, 1)}
    assert len(seeds) == 17
    assert all(0 <= seed < 2**63 for seed in seeds)
    # A golden value: other replicas and releases must derive the same.
    assert derive_seed(42, 1) == 5118136811659755321


def test_rank_is_priority_then_arrival_and_waiting_ages_it():
    older = make(order=1, now=0.0)
    younger = make(order=2, now=1.0)
    urgent = make(order=3, now=2.0, priority=-1)
    much_later = make(order=4, now=30.0, priority=-1)
    ranked = sorted((much_later, urgent, younger, older), key=lambda s: s.rank)
    assert ranked == [urgent, older, younger, much_later]
    no_aging = make(order=5, now=1e6, priority=-1, aging=0.0)
    assert no_aging.rank < make(order=1, now=0.0, aging=0.0).rank


def test_queue_keeps_order_and_refuses_strangers():
    queue = WaitingQueue()
    second, first = make(order=2), make(order=1)
    queue.push(second)
    queue.push(first)
    assert list(queue) == [first, second]
    queue.remove(first)
    assert list(queue) == [second]
    with pytest.raises(InternalError):
        queue.remove(first)


def test_deadlines_come_due_in_order_and_forget_ended_requests():
    deadlines = Deadlines()
    groups = [make(f"r{i}", now=0.0, deadline=10.0 + i, max_queue_time=5.0).group for i in (1, 0)]
    for group in groups:
        deadlines.add(group)
    assert deadlines.due(4.9) == []
    assert deadlines.next_at() == 5.0
    assert deadlines.due(5.0) == groups
    assert deadlines.due(10.0) == [groups[1]]
    for number in range(100):
        deadlines.add(make(f"x{number}", now=0.0, deadline=99.0).group)
    deadlines.forget_ended({"x7": None}, 1)
    assert [g.request.request_id for g in deadlines.due(99.0)] == ["x7"]
    assert deadlines.next_at() is None
