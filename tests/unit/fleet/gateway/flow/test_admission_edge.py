import asyncio
from collections.abc import Callable

import pytest
from tests.support.fake_clock import FakeClock

from headrace.config.fleet.flow import FlowConfig, PriorityClass, QueueBounds
from headrace.core.errors import (
    NoReplicaError,
    QueueFullError,
    QueueTimeoutError,
    RequestShedError,
    UnavailableError,
)
from headrace.fleet.gateway.flow.admission import MAX_LANES, Admission
from headrace.fleet.gateway.flow.lane import Lane
from headrace.fleet.gateway.flow.slot import Slot
from headrace.fleet.gateway.flow.values import Ticket, Waiter
from headrace.observe import catalogue
from headrace.observe.metrics import Metrics

TWO = (
    PriorityClass(name="high", rank=1, ttft=2.0),
    PriorityClass(name="low", sheddable=True, min_share=0.0),
)


class Fleet:
    """Replicas with some places, and an admission in front of them."""

    def __init__(
        self, places: int | None = 1, draw: Callable[[], float] = lambda: 0.99, **config
    ) -> None:
        self.places = places
        self.used = 0
        self.clock = FakeClock()
        self.metrics = Metrics()
        self.admission = Admission(
            FlowConfig(**config), self.clock, self.free, metrics=self.metrics, draw=draw
        )

    def free(self, lane: str) -> int | None:
        return None if self.places is None else max(0, self.places - self.used)

    def ticket(self, tenant: str = "a", priority: str = "standard", **fields) -> Ticket:
        return Ticket(**{"lane": "m", "tenant": tenant, "priority": priority, **fields})

    async def enter(self, *args, **fields) -> Slot:
        slot = await self.admission.acquire(self.ticket(*args, **fields))
        self.used += 1
        slot.placed()
        return slot

    def leave(self, slot: Slot) -> None:
        self.used -= 1
        slot.close()

    async def queue(self, *args, **fields) -> asyncio.Task[Slot]:
        task = asyncio.create_task(self.enter(*args, **fields))
        await asyncio.sleep(0)
        return task

    def refused(self, reason: str, priority: str = "standard") -> float:
        return self.metrics.value(catalogue.FLOW_REFUSED, ("m", priority, reason))

    def assert_idle(self) -> None:
        assert self.admission.waiting.is_empty
        assert self.admission.num_running == 0
        assert self.admission.num_waiting("m") == 0


async def test_with_room_a_turn_comes_at_once_and_without_it_on_release() -> None:
    fleet = Fleet()
    first = await fleet.enter()
    second = await fleet.queue()
    assert not second.done()
    assert fleet.admission.num_waiting("m") == 1
    fleet.clock.advance(3.0)
    fleet.leave(first)
    slot = await second
    assert slot.waited == 3.0
    fleet.leave(slot)
    fleet.assert_idle()


async def test_a_place_is_given_once_though_nobody_is_placed_yet() -> None:
    fleet = Fleet(places=2)
    slots = [await fleet.admission.acquire(fleet.ticket()) for _ in range(2)]
    third = await fleet.queue()
    assert not third.done()
    slots[0].close()
    fleet.leave(await third)
    slots[1].close()
    fleet.assert_idle()


async def test_a_context_closes_its_turn_whatever_happens() -> None:
    fleet = Fleet()
    with pytest.raises(ZeroDivisionError):
        async with fleet.admission.enter(fleet.ticket()):
            _ = 1 / 0
    fleet.assert_idle()


async def test_closing_twice_is_closing_once() -> None:
    fleet = Fleet()
    slot = await fleet.enter()
    fleet.leave(slot)
    slot.close()
    slot.placed()
    fleet.assert_idle()


async def test_a_client_that_leaves_the_queue_leaves_nothing() -> None:
    fleet = Fleet()
    held = await fleet.enter()
    waiting = await fleet.queue(num_bytes=100, prompt_tokens=7)
    assert fleet.admission.waiting.num_bytes == 100
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert fleet.refused("left") == 1
    fleet.leave(held)
    fleet.assert_idle()


async def test_a_client_that_leaves_as_its_turn_comes_gives_it_on() -> None:
    fleet = Fleet()
    held = await fleet.enter()
    leaving, next_one = await fleet.queue(), await fleet.queue()
    fleet.leave(held)  # the turn is given; its owner has not woken up
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    fleet.leave(await next_one)
    fleet.assert_idle()


async def test_a_turn_is_not_wasted_on_a_client_that_is_about_to_leave() -> None:
    fleet = Fleet()
    held = await fleet.enter()
    leaving, next_one = await fleet.queue(), await fleet.queue()
    leaving.cancel()  # it has not woken up yet, and still stands in the queue
    fleet.leave(held)
    fleet.leave(await next_one)
    assert leaving.cancelled()
    fleet.assert_idle()


async def test_waiting_has_an_end_with_a_retry_after_of_the_queue_s_pace() -> None:
    fleet = Fleet(classes=(PriorityClass(name="standard", max_wait=5.0),))
    for _ in range(4):
        fleet.leave(await fleet.enter())
        fleet.clock.advance(1.0)
    held = await fleet.enter()
    tasks = [await fleet.queue() for _ in range(6)]
    fleet.clock.advance(4.9)
    fleet.admission.tick()
    assert not tasks[0].done()
    fleet.clock.advance(0.1)
    fleet.admission.tick()
    with pytest.raises(QueueTimeoutError) as caught:
        await tasks[0]
    # 5 starts in the last 9 seconds, and 6 in the queue: 6 / (5 / 9).
    assert caught.value.retry_after == pytest.approx(10.8)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert fleet.refused("timeout") == 6
    fleet.leave(held)
    fleet.assert_idle()


async def test_a_request_s_own_patience_counts_too() -> None:
    fleet = Fleet()
    held = await fleet.enter()
    task = await fleet.queue(max_wait=1.0)
    fleet.clock.advance(1.0)
    fleet.admission.tick()
    with pytest.raises(QueueTimeoutError):
        await task
    fleet.leave(held)


async def test_the_waiting_room_holds_requests_until_a_replica_is_ready() -> None:
    fleet = Fleet(places=None, cold_wait=20.0)
    task = await fleet.queue()
    assert fleet.admission.cold_lanes() == ("m",)
    fleet.clock.advance(15.0)
    fleet.admission.tick()
    assert not task.done()
    fleet.places = 1
    fleet.admission.wake("m")
    slot = await task
    assert slot.waited == 15.0
    assert fleet.admission.cold_lanes() == ()
    fleet.leave(slot)
    fleet.assert_idle()


async def test_the_waiting_room_closes_with_503() -> None:
    fleet = Fleet(places=None, cold_wait=20.0)
    task = await fleet.queue()
    fleet.clock.advance(20.0)
    fleet.admission.tick()
    with pytest.raises(NoReplicaError) as caught:
        await task
    assert caught.value.retry_after == 10.0
    fleet.assert_idle()


async def test_503_says_how_long_the_last_cold_start_took() -> None:
    fleet = Fleet(places=None, cold_wait=40.0)
    task = await fleet.queue()
    fleet.clock.advance(33.0)
    fleet.places = 1
    fleet.admission.wake()
    fleet.leave(await task)
    fleet.places = None
    task = await fleet.queue()
    fleet.clock.advance(40.0)
    fleet.admission.tick()
    with pytest.raises(NoReplicaError) as caught:
        await task
    assert caught.value.retry_after == 33.0


async def test_after_a_cold_start_the_class_s_patience_begins_anew() -> None:
    fleet = Fleet(
        places=None, cold_wait=60.0, classes=(PriorityClass(name="standard", max_wait=5.0),)
    )
    first, second = await fleet.queue(), await fleet.queue()
    fleet.clock.advance(10.0)
    fleet.places = 1
    fleet.admission.tick()
    slot = await first
    fleet.clock.advance(4.9)
    fleet.admission.tick()
    assert not second.done()
    fleet.clock.advance(0.1)
    fleet.admission.tick()
    with pytest.raises(QueueTimeoutError):
        await second
    fleet.leave(slot)
    fleet.assert_idle()


async def test_a_full_queue_refuses_and_room_for_a_higher_class_is_made() -> None:
    fleet = Fleet(classes=TWO, total_bounds=QueueBounds(requests=2))
    held = await fleet.enter(priority="high")
    low = [await fleet.queue(priority="low") for _ in range(2)]
    third = await fleet.queue(priority="low")
    with pytest.raises((QueueFullError, RequestShedError)):
        await third
    high = await fleet.queue(priority="high")
    with pytest.raises(RequestShedError):
        await low[1]
    assert not low[0].done()
    assert fleet.refused("evicted", "low") == 1
    highs = [await fleet.queue(priority="high") for _ in range(2)]
    with pytest.raises(RequestShedError):
        await low[0]
    with pytest.raises(QueueFullError):
        await highs[1]
    fleet.leave(held)
    fleet.leave(await high)
    fleet.leave(await highs[0])
    fleet.assert_idle()


async def test_a_class_that_is_not_sheddable_never_gives_way() -> None:
    classes = (PriorityClass(name="high", rank=1), PriorityClass(name="low"))
    fleet = Fleet(classes=classes, total_bounds=QueueBounds(requests=1))
    held = await fleet.enter(priority="high")
    low = await fleet.queue(priority="low")
    with pytest.raises(QueueFullError):
        await fleet.enter(priority="high")
    fleet.leave(held)
    fleet.leave(await low)


async def test_shedding_begins_gently_before_the_queue_is_full() -> None:
    draws = iter([0.39, 0.41, 0.0])
    fleet = Fleet(
        classes=TWO, total_bounds=QueueBounds(requests=10), shed_from=0.5, draw=lambda: next(draws)
    )
    held = await fleet.enter(priority="high")
    waiting = [await fleet.queue(priority="high") for _ in range(7)]
    with pytest.raises(RequestShedError):  # 0.7 full: a chance of 0.4
        await fleet.enter(priority="low")
    waiting.append(await fleet.queue(priority="low"))
    assert not waiting[-1].done()
    with pytest.raises(RequestShedError):
        await fleet.enter(priority="low")
    assert fleet.refused("shed", "low") == 2
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    fleet.leave(held)
    fleet.assert_idle()


async def test_a_promise_that_is_about_to_break_sheds_too() -> None:
    fleet = Fleet(classes=TWO, draw=lambda: 0.5)
    for _ in range(5):
        fleet.leave(await fleet.enter(priority="high"))
    held = await fleet.enter(priority="high")
    fleet.clock.advance(1.0)
    waiting = [await fleet.queue(priority="high") for _ in range(10)]
    with pytest.raises(RequestShedError):  # 10 in the queue at 6 a second: 1.7 s of the promised 2
        await fleet.enter(priority="low")
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    fleet.leave(held)


async def test_real_usage_corrects_the_shares() -> None:
    fleet = Fleet(burst=0.0)
    held = await fleet.enter("a", prompt_tokens=10, output_tokens=1000)
    tasks = {name: [await fleet.queue(name, prompt_tokens=10) for _ in range(2)] for name in "ab"}
    held.used(prompt_tokens=10, output_tokens=0)
    fleet.leave(held)
    # a was charged 2010 when its request began, and 10 of it stand: both its next turns come before b's first.
    for task in (*tasks["a"], *tasks["b"]):
        await asyncio.wait([task], timeout=1.0)
        fleet.leave(task.result())
    assert fleet.metrics.value(catalogue.FLOW_SERVED, ("a",)) == 30
    fleet.assert_idle()


async def test_stopping_sends_away_all_that_wait() -> None:
    fleet = Fleet()
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
    fleet = Fleet()
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
    fleet = Fleet(places=10)
    for number in range(3 * MAX_LANES):
        async with fleet.admission.enter(fleet.ticket(lane=f"m{number}")):
            pass
    fleet.admission.write_gauges()
    assert len(list(fleet.metrics.values(catalogue.FLOW_RUNNING))) <= MAX_LANES


async def test_models_that_share_replicas_take_turns_and_share_no_place() -> None:
    fleet = Fleet()
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
    fleet = Fleet(classes=TWO)
    held = await fleet.enter(priority="high")
    low = await fleet.queue(priority="low")
    high = await fleet.queue(priority="high")
    upside_down = (PriorityClass(name="low", rank=5), PriorityClass(name="new"))
    fleet.admission.configure(FlowConfig(classes=upside_down))
    new = await fleet.queue(priority="new")
    fleet.leave(held)
    for task in (low, high, new):
        await asyncio.wait([task], timeout=1.0)
        fleet.leave(task.result())
    fleet.assert_idle()


async def test_shorter_patience_counts_for_those_that_wait_already() -> None:
    fleet = Fleet()
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
