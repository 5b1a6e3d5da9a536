from itertools import pairwise

import pytest
from tests.support.queue_simulation import poisson, simulate

from headrace.config.fleet.flow import FlowConfig, PriorityClass, QueueBounds, QueueOrder
from headrace.fleet.gateway.flow.fair_share import MAX_IDLE, FairShare
from headrace.fleet.gateway.flow.lane import Lane
from headrace.fleet.gateway.flow.values import Ticket, Waiter

TENANTS = [f"t{n}" for n in range(16)]


def waiter(number: int, tenant: str = "a", due: float = 0.0, **fields: object) -> Waiter:
    ticket = Ticket(**{"lane": "m", "tenant": tenant, "priority": "standard", **fields})
    return Waiter(ticket, number=number, arrived=float(number), due=due)


def order(lane: Lane) -> list[int]:
    found = []
    while (each := lane.pop()) is not None:
        found.append(each.number)
    return found


def test_the_least_served_tenant_is_next() -> None:
    lane = Lane(FlowConfig())
    for number in range(4):
        lane.push(waiter(number, "a", prompt_tokens=100))
    for number in range(4, 8):
        lane.push(waiter(number, "b", prompt_tokens=100))
    assert order(lane) == [0, 4, 1, 5, 2, 6, 3, 7]


def test_output_counts_double_and_long_requests_count_long() -> None:
    lane = Lane(FlowConfig())
    lane.push(waiter(0, "a", prompt_tokens=100, output_tokens=100))
    lane.push(waiter(1, "a"))
    for number in range(2, 7):
        lane.push(waiter(number, "b", prompt_tokens=100))
    assert order(lane) == [0, 2, 3, 4, 1, 5, 6]


def test_a_tenant_of_twice_the_weight_gets_twice_as_much() -> None:
    lane = Lane(FlowConfig())
    for number in range(0, 30, 2):
        lane.push(waiter(number, "a", prompt_tokens=10, weight=2.0))
        lane.push(waiter(number + 1, "b", prompt_tokens=10))
    first = order(lane)[:12]
    assert sum(number % 2 == 0 for number in first) == 8


def test_idle_time_saves_nothing_up() -> None:
    shares = FairShare()
    shares.join("busy")
    shares.charge("busy", 5000.0)
    shares.join("new")
    assert shares.counter("new") == 5000.0


def test_a_tenant_that_paused_is_ahead_by_its_burst_and_no_more() -> None:
    shares = FairShare(burst=100.0)
    shares.join("busy")
    shares.charge("busy", 5000.0)
    shares.join("paused")
    assert shares.counter("paused") == 4900.0
    shares.leave("paused")
    shares.join("paused")
    assert shares.counter("paused") == 4900.0


def test_the_first_tenant_after_a_pause_starts_where_the_last_one_stopped() -> None:
    shares = FairShare()
    shares.join("busy")
    shares.charge("busy", 5000.0)
    shares.leave("busy")
    assert shares.first() is None
    shares.join("new")
    assert shares.counter("new") == 5000.0


def test_a_request_that_took_less_than_expected_gives_its_tenant_an_earlier_turn() -> None:
    shares = FairShare()
    for name in ("a", "b"):
        shares.join(name)
    for name in ("a", "b"):
        shares.charge(name, 100.0)
    shares.charge("b", -50.0)
    assert shares.first() == "b"
    shares.charge("b", 60.0)
    assert shares.first() == "a"


def test_counters_of_tenants_that_went_are_forgotten() -> None:
    shares = FairShare()
    for number in range(10 * MAX_IDLE):
        shares.join(f"t{number}")
        shares.charge(f"t{number}", float(number))
        shares.leave(f"t{number}")
    assert shares.num_known <= MAX_IDLE + 1


def test_edf_takes_the_one_that_is_due_first() -> None:
    lane = Lane(FlowConfig(classes=(PriorityClass(name="standard", order=QueueOrder.EDF),)))
    for number, due in enumerate([9.0, 3.0, 6.0]):
        lane.push(waiter(number, due=due))
    assert order(lane) == [1, 2, 0]


def test_higher_classes_go_first_but_lower_ones_keep_their_share() -> None:
    classes = (PriorityClass(name="standard", rank=1), PriorityClass(name="low", min_share=0.1))
    lane = Lane(FlowConfig(classes=classes))
    for number in range(100):
        lane.push(waiter(number, prompt_tokens=10))
        lane.push(waiter(100 + number, priority="low", prompt_tokens=10))
    found = order(lane)
    low = [place for place, number in enumerate(found[:99]) if number >= 100]
    assert 8 <= len(low) <= 10
    assert all(right - left >= 9 for left, right in pairwise(low))


def test_a_class_without_a_share_waits_for_all_above() -> None:
    classes = (PriorityClass(name="standard", rank=1), PriorityClass(name="low", min_share=0.0))
    lane = Lane(FlowConfig(classes=classes))
    lane.push(waiter(0, priority="low"))
    for number in range(1, 50):
        lane.push(waiter(number))
    assert order(lane)[-1] == 0


def test_bounds_are_per_class_and_per_tenant_in_requests_tokens_and_bytes() -> None:
    kind = PriorityClass(name="standard", bounds=QueueBounds(requests=3, tokens=100, bytes=100))
    bounds = QueueBounds(requests=2, tokens=100, bytes=100)
    queue = Lane(FlowConfig(classes=(kind,), tenant_bounds=bounds)).classes["standard"]
    ticket = waiter(0, prompt_tokens=40, num_bytes=30).ticket
    assert queue.refusal(ticket) is None
    queue.push(waiter(0, prompt_tokens=40, num_bytes=30))
    assert "is full" in str(queue.refusal(waiter(1, "b", prompt_tokens=70).ticket))
    assert "is full" in str(queue.refusal(waiter(1, "b", num_bytes=71).ticket))
    queue.push(waiter(1, num_bytes=1))
    assert "of 'a'" in str(queue.refusal(waiter(2).ticket))
    assert queue.refusal(waiter(2, "b").ticket) is None
    queue.push(waiter(2, "b"))
    assert "is full" in str(queue.refusal(waiter(3, "c").ticket))


def test_one_that_is_too_large_by_itself_may_wait_alone() -> None:
    kind = PriorityClass(name="standard", bounds=QueueBounds(requests=3, tokens=100))
    queue = Lane(FlowConfig(classes=(kind,))).classes["standard"]
    assert queue.refusal(waiter(0, prompt_tokens=500).ticket) is None


@pytest.mark.parametrize("places", [29, 31])
def test_a_flood_of_one_tenant_leaves_the_others_where_they_were(places: int) -> None:
    """16 equal tenants saturate the fleet, a little or wholly; one then sends 20 times as much."""
    config = FlowConfig()
    seconds, rate = 240.0, 1.3
    calm = [each for name in TENANTS for each in poisson(name, rate=rate, seconds=seconds, seed=1)]
    flood = calm + poisson(TENANTS[0], rate=19 * rate, seconds=seconds, seed=2)
    # 16 x 1.3 requests a second of 1.46 s each: 30.3 places are busy on average.
    before = simulate(config, calm, places=places)
    after = simulate(config, flood, places=places)
    others = TENANTS[1:]
    assert before.refused == {}
    assert all(after.refused[name] == 0 for name in others)
    assert after.p95(others) <= 1.3 * before.p95(others)
    assert after.p95(TENANTS[:1]) > 3 * after.p95(others)


def test_without_fair_shares_the_flood_would_hurt_all() -> None:
    """The test above can fail: in one queue for all the same flood ruins everybody's time."""
    bounds = QueueBounds(requests=100_000, tokens=10**9)
    config = FlowConfig(
        classes=(PriorityClass(name="standard", bounds=bounds),), tenant_bounds=bounds
    )
    calm = [each for name in TENANTS for each in poisson(name, rate=1.3, seconds=60.0, seed=1)]
    flood = poisson(TENANTS[0], rate=19 * 1.3, seconds=60.0, seed=2)
    together = [
        type(each)(each.at, "all", each.prompt_tokens, each.output_tokens) for each in calm + flood
    ]
    alone = [type(each)(each.at, "all", each.prompt_tokens, each.output_tokens) for each in calm]
    before = simulate(config, alone, places=31)
    after = simulate(config, together, places=31)
    assert after.p95(["all"]) > 1.3 * before.p95(["all"])
