"""Admission counts what waits and refuses before any work."""

import asyncio

import pytest
from tests.support.fake_clock import FakeClock

from headrace.core.errors import OverloadedError, UnavailableError
from headrace.server.admission import MAX_RETRY_AFTER, Admission


def make(*, requests=2, tokens=1000, running=1, closed=None):
    clock = FakeClock()
    admission = Admission(
        clock,
        max_queued_requests=requests,
        max_queued_tokens=tokens,
        closed_reason=lambda: closed,
    )
    admission.max_running = running
    return admission, clock


def test_as_many_wait_as_may_beside_those_that_can_start():
    admission, _ = make(requests=2, running=1)
    tickets = [admission.enter(4) for _ in range(3)]
    with pytest.raises(OverloadedError):
        admission.enter(4)
    tickets[0].start()
    with pytest.raises(OverloadedError):
        admission.check_open()  # the free place is taken now
    tickets[1].close()
    admission.enter(4)


def test_a_limit_of_none_still_serves_what_can_start_at_once():
    admission, _ = make(requests=0, running=2)
    first, second = admission.enter(4), admission.enter(4)
    with pytest.raises(OverloadedError):
        admission.enter(4)
    first.start()
    second.start()
    with pytest.raises(OverloadedError):
        admission.enter(4)
    first.close()
    admission.enter(4)


def test_tokens_are_guessed_from_bytes_then_counted():
    admission, _ = make(requests=100, tokens=1000)
    ticket = admission.enter(3600)
    assert admission.queued_tokens == 900
    with pytest.raises(OverloadedError, match="900 prompt tokens"):
        admission.enter(404)
    ticket.resize(100)
    assert admission.queued_tokens == 100
    admission.enter(404)


def test_a_prompt_above_the_bound_comes_in_when_nobody_waits():
    admission, _ = make(tokens=10)
    admission.enter(4000).start()
    admission.enter(4000)
    with pytest.raises(OverloadedError):
        admission.enter(4)


def test_every_way_to_close_gives_everything_back():
    admission, _ = make(requests=10)
    for steps in (["close"], ["close", "close"], ["start", "close"], ["start", "start", "close"]):
        ticket = admission.enter(400)
        for step in steps:
            getattr(ticket, step)()
        ticket.resize(7)
        assert (admission.num_open, admission.queued_tokens) == (0, 0)


def test_retry_after_is_the_queue_over_the_rate_of_starts():
    admission, clock = make(requests=40, running=1)
    for _ in range(20):
        ticket = admission.enter(4)
        ticket.start()
        ticket.close()
        clock.advance(0.25)
    for _ in range(41):
        admission.enter(4)
    with pytest.raises(OverloadedError) as caught:
        admission.enter(4)
    assert caught.value.retry_after == pytest.approx(41 / 4, rel=0.01)
    clock.advance(1000)
    with pytest.raises(OverloadedError) as caught:
        admission.enter(4)
    assert 1 <= caught.value.retry_after <= MAX_RETRY_AFTER


def test_closed_is_503_with_the_reason():
    admission, _ = make(closed="The server is shutting down.")
    with pytest.raises(UnavailableError, match="shutting down"):
        admission.enter(4)


async def test_waiting_for_the_last_ticket():
    admission, _ = make()
    assert await admission.wait_empty(0)
    ticket = admission.enter(4)
    assert not await admission.wait_empty(0)
    asyncio.get_running_loop().call_soon(ticket.close)
    assert await admission.wait_empty(10)


def test_a_full_queue_is_told_until_it_is_well_below_its_bound():
    admission, _ = make(requests=10, running=1)
    running = admission.enter(4)
    running.start()
    tickets = [admission.enter(4) for _ in range(9)]
    assert admission.full_reason is None
    tickets.append(admission.enter(4))
    assert "10 requests" in admission.full_reason
    for ticket in tickets[:2]:
        ticket.close()
        assert admission.full_reason  # 9, 8: not yet below 80 %
    tickets[2].close()
    assert admission.full_reason is None
    tickets += [admission.enter(4), admission.enter(4)]
    assert admission.full_reason is None  # 9
    tickets.append(admission.enter(4))
    assert admission.full_reason
    running.close()  # a free place makes room as well, but not enough of it
    assert admission.full_reason
    for ticket in tickets:
        ticket.close()
    assert admission.full_reason is None


def test_many_tokens_fill_the_queue_too():
    admission, _ = make(requests=100, tokens=1000)
    first = admission.enter(2000)
    second = admission.enter(2000)
    assert "1000 prompt tokens" in admission.full_reason
    second.resize(350)
    assert admission.full_reason
    second.resize(200)
    assert admission.full_reason is None
    first.close()
    second.start()
    second.close()
    assert (admission.queued_tokens, admission.full_reason) == (0, None)


@pytest.mark.parametrize("bounds", [{"requests": 0}, {"tokens": 0}, {"requests": 0, "tokens": 0}])
def test_bounds_of_none_are_full_only_while_places_are_taken(bounds):
    admission, _ = make(**{"requests": 5, **bounds})
    assert admission.full_reason is None
    ticket = admission.enter(4)
    assert admission.full_reason
    ticket.close()
    assert admission.full_reason is None
