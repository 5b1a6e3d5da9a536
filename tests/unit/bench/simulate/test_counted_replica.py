"""The replica that counts, against sums made by hand; that it follows the real scheduler is shown in test_modes."""

import pytest

from headrace.bench.simulate.counted_replica import CountedReplica, Job
from headrace.bench.simulate.profile import Profile, StepTime

STEP = StepTime(fixed=0.01, prefill_token=0.001, decode_row=0.002, attended_token=1e-5)
PROFILE = Profile(model="m", step=STEP, max_num_seqs=2, max_num_batched_tokens=100, kv_tokens=4096)


def drained(replica: CountedReplica) -> list[tuple[Job, float]]:
    """Everybody, with the time of the last token."""
    ended = []
    while (now := replica.next_event) is not None:
        ended += [(job, now) for job in replica.advance()]
    return ended


def test_one_request_takes_the_steps_that_the_scheduler_would_give_it() -> None:
    replica = CountedReplica(1, PROFILE, 512, 5.0)
    job = Job(5.0, 250, 4, ())
    assert replica.add(job, 5.0)
    ((_, end),) = drained(replica)
    prefill = 3 * 0.01 + 250 * 0.001 + 1e-5 * 250 * 251 / 2
    decode = 3 * (0.01 + 0.002) + 1e-5 * (251 + 252 + 253)
    assert job.first == pytest.approx(5.0 + prefill)
    assert end == pytest.approx(5.0 + prefill + decode)
    assert replica.busy_seconds == pytest.approx(prefill + decode)
    assert replica.num_requests == replica.prefill_tokens == replica.decode_tokens == 0
    assert replica.kv_usage == 0


def test_an_answer_of_one_token_ends_with_its_prompt() -> None:
    replica = CountedReplica(1, PROFILE, 512, 0.0)
    job = Job(0.0, 50, 1, ())
    replica.add(job, 0.0)
    ((_, end),) = drained(replica)
    assert job.first == end == pytest.approx(0.01 + 0.05 + 1e-5 * 50 * 51 / 2)


def test_a_third_request_waits_for_one_of_two_slots() -> None:
    replica = CountedReplica(1, PROFILE, 512, 0.0)
    jobs = [Job(0.0, 10, 50, ()), Job(0.0, 10, 20, ()), Job(0.0, 10, 5, ())]
    for job in jobs:
        replica.add(job, 0.0)
    assert replica.num_running + replica.num_waiting == 3
    order = drained(replica)
    assert [job for job, _ in order] == [jobs[1], jobs[2], jobs[0]]
    assert jobs[2].first > order[0][1]


def test_a_request_that_comes_in_the_middle_joins_after_the_step_that_runs() -> None:
    replica = CountedReplica(1, PROFILE, 512, 0.0)
    first, second = Job(0.0, 10, 1000, ()), Job(1.0, 10, 5, ())
    replica.add(first, 0.0)
    replica.advance()
    assert replica.next_event is not None
    before = replica.next_event
    assert replica.add(second, 1.0)
    assert 1.0 <= replica.next_event < 1.1 < before
    ended = drained(replica)
    assert ended[0][0] is second
    assert ended[0][1] < 1.3


def test_what_was_computed_before_is_a_hit_while_it_is_cached() -> None:
    replica = CountedReplica(1, PROFILE, 32, 0.0)
    replica.add(Job(0.0, 100, 1, (1, 2, 3)), 0.0)
    drained(replica)
    again = Job(9.0, 100, 1, (1, 2, 9))
    assert replica.hit(again.blocks, 100) == 64
    replica.add(again, 9.0)
    assert replica.prefill_tokens == 36
    drained(replica)
    assert again.cached == 64
    # A prompt's last token is always computed.
    assert replica.hit((1, 2), 64) == 63
    for number in range(PROFILE.kv_tokens // 32):
        replica.add(Job(10.0, 40, 1, (100 + number,)), 10.0)
        drained(replica)
    assert replica.hit((1, 2), 100) == 0


def test_memory_bounds_who_runs_and_the_youngest_gives_way() -> None:
    tight = Profile(model="m", step=STEP, max_num_seqs=8, max_num_batched_tokens=512, kv_tokens=256)
    replica = CountedReplica(1, tight, 512, 0.0)
    old, young = Job(0.0, 100, 100, ()), Job(0.0, 100, 100, ())
    replica.add(old, 0.0)
    replica.add(young, 0.0)
    ended = drained(replica)
    assert [job for job, _ in ended] == [old, young]
    assert replica.kv_usage == 0
    assert replica.decode_tokens == replica.prefill_tokens == 0


def test_what_a_replica_had_when_it_ended_is_gone_on_with_elsewhere() -> None:
    replica = CountedReplica(1, PROFILE, 512, 0.0)
    running, waiting = Job(0.0, 10, 100, ()), Job(0.0, 500, 10, ())
    replica.add(running, 0.0)
    replica.advance()
    replica.add(waiting, replica.next_event or 0.0)
    lost = replica.lose_all()
    assert set(lost) == {running, waiting}
    assert replica.next_event is None
    assert running.remaining == 10 + (100 - running.left) > 10
    other = CountedReplica(2, PROFILE, 512, 0.0)
    for job in lost:
        other.add(job, 1.0)
    first = running.first
    assert {job for job, _ in drained(other)} == {running, waiting}
    assert running.first == first
