"""When the watchdog takes an engine to be stuck."""

import pytest
from tests.support.engine_run import make_request
from tests.support.fake_clock import FakeClock

from headrace.engine.dues import Dues


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def dues(clock):
    return Dues(clock, 10.0)


def test_time_counts_from_the_last_progress_while_something_is_owed(dues, clock):
    clock.advance(99.0)
    assert not dues.is_stuck
    dues.add(make_request("a", [1], n=2))
    clock.advance(6.0)
    assert (dues.is_late, dues.is_stuck) == (True, False)
    dues.note_progress()
    clock.advance(4.0)
    assert not dues.is_late
    dues.settle("a")
    clock.advance(6.5)
    assert (dues.stalled, dues.is_stuck) == (10.5, True)
    dues.settle("a")
    assert (dues.stalled, dues.is_late, dues.is_stuck) == (0.0, False, False)
    dues.settle("a")  # told twice


def test_another_request_does_not_hide_the_one_that_hangs(dues, clock):
    dues.add(make_request("a", [1]))
    clock.advance(9.0)
    dues.add(make_request("b", [1]))
    clock.advance(2.0)
    assert dues.is_stuck


def test_what_it_does_on_purpose_does_not_count(dues, clock):
    dues.add(make_request("a", [1]))
    dues.waits_until = clock.monotonic() + 100.0
    clock.advance(99.0)
    assert dues.stalled == 0.0
    clock.advance(10.0)
    assert (dues.is_late, dues.is_stuck) == (True, False)
    clock.advance(2.0)
    assert dues.is_stuck


def test_a_step_with_a_whole_prompt_gets_time_for_it(dues, clock):
    dues.add(make_request("long", [1] * 4096, max_tokens=1024))
    dues.add(make_request("short", [1]))
    clock.advance(11.0)
    assert dues.is_stuck  # prompts are split: no step is that long
    dues.splits_prompts = False
    assert not dues.is_stuck
    clock.advance(88.0)
    assert (dues.is_late, dues.is_stuck) == (True, False)
    clock.advance(2.0)
    assert dues.is_stuck  # 100 s for 5120 tokens
    dues.clear()
    assert dues.stalled == 0.0
