"""How much batches may run: what others leave over, and nothing while others wait."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.server.batches.capacity import PATIENCE, Traffic, num_to_start, num_to_take_back

counts = st.integers(0, 100)
traffics = st.builds(
    Traffic,
    max_running=st.integers(1, 64),
    num_waiting=counts,
    num_started=counts,
    num_batched=counts,
    waited=st.floats(0, 10),
)


@given(traffics, st.integers(1, 64))
def test_batches_begin_only_in_places_that_are_free(traffic, limit):
    count = num_to_start(traffic, limit)
    assert count >= 0
    if count:
        assert traffic.num_waiting == 0
        assert traffic.num_batched + count <= limit
        busy = traffic.num_started + traffic.num_batched + count
        assert busy <= traffic.max_running - traffic.max_running // 4


@given(traffics)
def test_what_is_taken_back_makes_room_for_those_who_wait(traffic):
    count = num_to_take_back(traffic)
    assert 0 <= count <= traffic.num_batched
    if traffic.num_waiting == 0:
        assert count == 0
        return
    left = traffic.num_waiting + traffic.num_started + traffic.num_batched - count
    assert left <= traffic.max_running or count == traffic.num_batched


@given(traffics, st.integers(1, 64))
def test_nothing_is_begun_that_would_be_taken_back(traffic, limit):
    assert not (num_to_start(traffic, limit) and num_to_take_back(traffic))


@pytest.mark.parametrize(("waited", "count"), [(0.0, 0), (PATIENCE, 1)])
def test_one_that_waits_although_places_are_free_lacks_memory(waited, count):
    traffic = Traffic(max_running=8, num_waiting=1, num_started=1, num_batched=3, waited=waited)
    assert num_to_take_back(traffic) == count


def test_one_place_is_used_too():
    free = Traffic(max_running=1, num_waiting=0, num_started=0, num_batched=0, waited=0.0)
    assert num_to_start(free, 16) == 1
