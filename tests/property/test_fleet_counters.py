"""Leases, breakers and retry budgets under any history."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.config.fleet.gateway import RetryConfig
from headrace.fleet.breaker import Breaker, Circuit
from headrace.fleet.gateway.attempts import ALWAYS, WINDOW, Attempts, RetryBudget
from headrace.fleet.load import Lease, Load

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["open", "first", "tokens", "close"]),
        st.integers(0, 9),
        st.integers(0, 3000),
    ),
    max_size=80,
)


@given(ACTIONS)
def test_sums_are_those_of_the_open_leases(actions):
    load = Load()
    leases: list[Lease] = []
    for action, which, count in actions:
        if action == "open":
            leases.append(Lease(load, prefill_tokens=count, decode_tokens=2 * count))
        elif leases:
            lease = leases[which % len(leases)]
            if action == "first":
                lease.note_first_token()
            elif action == "tokens":
                lease.note_tokens(count)
            else:
                lease.close()
        assert load.num_requests >= 0
        assert load.prefill_tokens >= 0
        assert load.decode_tokens >= 0
        assert load.is_idle == (load.num_requests == load.prefill_tokens == load.decode_tokens == 0)
    for lease in leases:
        lease.close()
    assert load.is_idle


EVENTS = st.lists(
    st.tuples(st.sampled_from(["sent", "good", "bad", "alive", "wait"]), st.floats(0.01, 30.0)),
    max_size=60,
)


@given(EVENTS, st.integers(1, 4))
def test_a_breaker_opens_by_failures_alone_and_never_for_ever(events, max_failures):
    breaker = Breaker(max_failures, 5.0)
    now, in_a_row = 1000.0, 0
    for event, seconds in events:
        before = breaker.state(now)
        if event == "wait":
            now += seconds
            continue
        if event == "sent":
            breaker.note_sent(now)
            if before is Circuit.HALF_OPEN:  # one may, and no other
                assert breaker.state(now) is Circuit.OPEN
        elif event == "good":
            breaker.note_success()
            in_a_row = 0
            assert breaker.state(now) is Circuit.CLOSED
        elif event == "alive":
            breaker.note_alive()
            assert breaker.state(now) in (Circuit.CLOSED, Circuit.HALF_OPEN)
        else:
            breaker.note_failure(now)
            in_a_row += 1
            if in_a_row < max_failures:
                assert breaker.state(now) is Circuit.CLOSED
            else:
                assert breaker.state(now) is not Circuit.CLOSED
        assert breaker.state(now + 5.0 * Breaker.MAX_FACTOR) is not Circuit.OPEN


@given(
    st.lists(st.tuples(st.booleans(), st.floats(0.0, 3.0)), max_size=200),
    st.sampled_from([0.0, 0.2, 1.0]),
)
def test_retries_of_a_window_are_a_share_of_its_requests(history, share):
    budget = RetryBudget(share)
    now = 1000.0
    requests: list[float] = []
    retries: list[float] = []
    for is_request, seconds in history:
        now += seconds
        if is_request:
            budget.note_request(now)
            requests.append(now)
        elif budget.take(now):
            retries.append(now)
        recent = [t for t in requests if t > now - WINDOW]
        taken = [t for t in retries if t > now - WINDOW]
        if taken and taken[-1] == now:
            assert len(taken) <= ALWAYS + share * len(recent) + 1


@given(st.integers(0, 5000))
def test_a_backoff_is_bounded_however_many_tries_there_were(count):
    attempts = Attempts(RetryConfig(backoff=0.05), RetryBudget(0.2))
    attempts.num_failed = count
    assert 0.0 <= attempts.backoff() <= 2.0
