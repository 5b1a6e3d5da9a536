import asyncio

import pytest
from tests.support.admission_fleet import TWO, AdmissionFleet
from tests.support.patience import PATIENCE

from headrace.config.fleet.flow import FlowConfig, PriorityClass, QueueBounds
from headrace.core.errors import (
    QueueFullError,
    QueueTimeoutError,
    UnavailableError,
)
from headrace.fleet.gateway.flow.admission import MAX_LANES
from headrace.fleet.gateway.flow.lane import Lane
from headrace.fleet.gateway.flow.values import Ticket, Waiter
from headrace.observe import catalogue


async def test_real_usage_corrects_the_shares() -> None:
    fleet = AdmissionFleet(burst=0.0)
    held = await fleet.enter("a", prompt_tokens=10, output_tokens=1000)
    tasks = {name: [await fleet.queue(name, prompt_tokens=10) for _ in range(2)] for name in "ab"}
    held.used(prompt_tokens=10, output_tokens=0)
    fleet.leave(held)
    # a was charged 2010 when its request began, and 10 of it stand: both its next turns come before b's first.
    for task in (*tasks["a"], *tasks["b"]):
        await asyncio.wait([task], timeout=PATIENCE)
        fleet.leave(task.result())
    assert fleet.metrics.value(catalogue.FLOW_SERVED, ("a",)) == 30
    fleet.assert_idle()


async def test_stopping_sends_away_all_that_wait() -> None:
    fleet = AdmissionFleet()
    held = await fleet.enter()
    task = await fleet.queue()
    fleet.admission.close()
    with pytest.raises(UnavailableError):
        await task
    with pytest.raises(UnavailableError):
        await fleet.enter()
    fleet.leave(held)
    fleet.assert_idle()


async def test_gauges_show_what_waits_and_runs() -> None:
    fleet = AdmissionFleet()
    held = await fleet.enter()
    task = await fleet.queue(prompt_tokens=10, output_tokens=5, num_bytes=99)
    fleet.admission.write_gauges()
    assert fleet.metrics.value(catalogue.FLOW_WAITING, ("m", "standard")) == 1
    assert fleet.metrics.value(catalogue.FLOW_WAITING_TOKENS, ("m", "standard")) == 15
    assert fleet.metrics.value(catalogue.FLOW_WAITING_BYTES, ()) == 99
    assert fleet.metrics.value(catalogue.FLOW_RUNNING, ("m",)) == 1
    fleet.leave(held)
    fleet.leave(await task)
    fleet.admission.write_gauges()
    assert fleet.metrics.total(catalogue.FLOW_RUNNING) == 0
    assert fleet.metrics.total(catalogue.FLOW_WAITING) == 0


async def test_names_of_models_that_come_and_go_are_not_kept() -> None:
    fleet = AdmissionFleet(places=10)
    for number in range(3 * MAX_LANES):
        async with fleet.admission.enter(fleet.ticket(lane=f"m{number}")):
            pass
    fleet.admission.write_gauges()
    assert len(list(fleet.metrics.values(catalogue.FLOW_RUNNING))) <= MAX_LANES


async def test_models_that_share_replicas_take_turns_and_share_no_place() -> None:
    fleet = AdmissionFleet()
    held = await fleet.enter()
    tasks = {}
    for lane in ("m", "n", "m", "n"):
        tasks.setdefault(lane, []).append(await fleet.queue(lane=lane))
    order = []
    for _ in range(4):
        fleet.leave(held)
        for _ in range(8):
            await asyncio.sleep(0)
        done = [(lane, task) for lane, all_of in tasks.items() for task in all_of if task.done()]
        assert len(done) == 1
        assert fleet.used == 1
        ((lane, task),) = done
        order.append(lane)
        tasks[lane].remove(task)
        held = task.result()
    fleet.leave(held)
    assert order == ["m", "n", "m", "n"]
    fleet.assert_idle()


async def test_another_configuration_keeps_everybody_in_the_queue() -> None:
    fleet = AdmissionFleet(classes=TWO)
    held = await fleet.enter(priority="high")
    low = await fleet.queue(priority="low")
    high = await fleet.queue(priority="high")
    upside_down = (PriorityClass(name="low", rank=5), PriorityClass(name="new"))
    fleet.admission.configure(FlowConfig(classes=upside_down))
    new = await fleet.queue(priority="new")
    fleet.leave(held)
    for task in (low, high, new):
        await asyncio.wait([task], timeout=PATIENCE)
        fleet.leave(task.result())
    fleet.assert_idle()


async def test_shorter_patience_counts_for_those_that_wait_already() -> None:
    fleet = AdmissionFleet()
    held = await fleet.enter()
    task = await fleet.queue()
    fleet.admission.configure(FlowConfig(classes=(PriorityClass(name="standard", max_wait=2.0),)))
    fleet.clock.advance(2.0)
    fleet.admission.tick()
    with pytest.raises(QueueTimeoutError):
        await task
    fleet.leave(held)
    fleet.assert_idle()


def test_counters_of_tenants_outlive_a_change() -> None:
    lane = Lane(FlowConfig(burst=0.0))
    for number, tenant in enumerate("aab"):
        ticket = Ticket(lane="m", tenant=tenant, priority="standard", prompt_tokens=100)
        lane.push(Waiter(ticket, number=number, arrived=0.0, due=0.0))
    assert lane.pop().ticket.tenant == "a"
    renewed = lane.renewed(FlowConfig(burst=0.0))
    assert renewed.pop().ticket.tenant == "b"


async def test_what_a_request_claims_fills_no_queue_but_its_tenant_s() -> None:
    """One that asks for more tokens than there can be must not have everybody else refused."""
    bounds = QueueBounds(requests=10, tokens=100)
    fleet = AdmissionFleet(
        tenant_bounds=bounds,
        total_bounds=QueueBounds(requests=100, tokens=400),
        classes=(PriorityClass(name="standard", bounds=QueueBounds(tokens=300)),),
    )
    held = await fleet.enter()
    huge = await fleet.queue("huge", output_tokens=1 << 60)
    others = [await fleet.queue("b", output_tokens=40), await fleet.queue("c", output_tokens=40)]
    with pytest.raises(QueueFullError, match="of 'huge'"):
        await fleet.enter("huge", output_tokens=1)
    for task in (huge, *others):
        fleet.leave(held)
        held = await task
    fleet.leave(held)
    fleet.assert_idle()


async def test_what_a_request_claims_is_not_lost_in_its_tenant_s_account() -> None:
    fleet = AdmissionFleet(burst=0.0)
    served = await fleet.enter("a", output_tokens=50_001)
    fleet.leave(served)
    claimed = await fleet.enter("a", output_tokens=1 << 70)
    claimed.used(prompt_tokens=0, output_tokens=1)
    fleet.leave(claimed)
    shares = fleet.admission.lanes["m"].classes["standard"].shares
    assert shares.counter("a") == 2 * 50_001 + 2


async def test_a_class_that_comes_back_takes_its_requests_from_the_one_that_kept_them() -> None:
    """Who waits under a class that is not configured waits in the usual one, until that changes or theirs is back."""
    two = (PriorityClass(name="high", rank=1), PriorityClass(name="low"))
    three = (*two, PriorityClass(name="gold", rank=2))
    fleet = AdmissionFleet(classes=three, default_class="low")
    held = await fleet.enter(priority="high")
    waiting = await fleet.queue("a", priority="gold")
    for config in (
        FlowConfig(classes=two, default_class="low"),
        FlowConfig(classes=two, default_class="high"),
        FlowConfig(classes=three, default_class="low"),
    ):
        fleet.admission.configure(config)
        fleet.admission.wake()
    later = await fleet.queue("b", priority="low")
    for task in (waiting, later):
        fleet.leave(held)
        held = await task
    fleet.leave(held)
    fleet.assert_idle()


async def test_a_turn_is_settled_by_the_weights_that_it_was_charged_by() -> None:
    fleet = AdmissionFleet(burst=0.0, output_weight=1.0)
    slot = await fleet.enter("a", output_tokens=100)
    fleet.admission.configure(FlowConfig(burst=0.0, output_weight=10.0))
    slot.used(prompt_tokens=0, output_tokens=100)
    fleet.leave(slot)
    shares = fleet.admission.lanes["m"].classes["standard"].shares
    assert shares.counter("a") == 1000.0
