import asyncio

import pytest
from tests.support.admission_fleet import TWO, AdmissionFleet
from tests.support.patience import PATIENCE

from headrace.config.fleet.flow import PriorityClass, QueueBounds, QueueOrder
from headrace.core.errors import (
    NoReplicaError,
    QueueFullError,
    QueueTimeoutError,
    RequestShedError,
)


async def test_with_room_a_turn_comes_at_once_and_without_it_on_release() -> None:
    fleet = AdmissionFleet()
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
    fleet = AdmissionFleet(places=2)
    slots = [await fleet.admission.acquire(fleet.ticket()) for _ in range(2)]
    third = await fleet.queue()
    assert not third.done()
    slots[0].close()
    fleet.leave(await third)
    slots[1].close()
    fleet.assert_idle()


async def test_a_context_closes_its_turn_whatever_happens() -> None:
    fleet = AdmissionFleet()
    with pytest.raises(ZeroDivisionError):
        async with fleet.admission.enter(fleet.ticket()):
            _ = 1 / 0
    fleet.assert_idle()


async def test_closing_twice_is_closing_once() -> None:
    fleet = AdmissionFleet()
    slot = await fleet.enter()
    fleet.leave(slot)
    slot.close()
    slot.placed()
    fleet.assert_idle()


async def test_a_client_that_leaves_the_queue_leaves_nothing() -> None:
    fleet = AdmissionFleet()
    held = await fleet.enter()
    waiting = await fleet.queue(num_bytes=100, prompt_tokens=7)
    assert fleet.admission.waiting.num_bytes == 100
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert fleet.refused("left") == 1
    fleet.leave(held)
    fleet.assert_idle()


async def test_a_client_that_leaves_as_its_turn_comes_gives_it_on() -> None:
    fleet = AdmissionFleet()
    held = await fleet.enter()
    leaving, next_one = await fleet.queue(), await fleet.queue()
    fleet.leave(held)  # the turn is given; its owner has not woken up
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    fleet.leave(await next_one)
    fleet.assert_idle()


async def test_a_turn_is_not_wasted_on_a_client_that_is_about_to_leave() -> None:
    fleet = AdmissionFleet()
    held = await fleet.enter()
    leaving, next_one = await fleet.queue(), await fleet.queue()
    leaving.cancel()  # it has not woken up yet, and still stands in the queue
    fleet.leave(held)
    fleet.leave(await next_one)
    assert leaving.cancelled()
    fleet.assert_idle()


async def test_waiting_has_an_end_with_a_retry_after_of_the_queue_s_pace() -> None:
    fleet = AdmissionFleet(classes=(PriorityClass(name="standard", max_wait=5.0),))
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
    fleet = AdmissionFleet()
    held = await fleet.enter()
    task = await fleet.queue(max_wait=1.0)
    fleet.clock.advance(1.0)
    fleet.admission.tick()
    with pytest.raises(QueueTimeoutError):
        await task
    fleet.leave(held)


async def test_the_waiting_room_holds_requests_until_a_replica_is_ready() -> None:
    fleet = AdmissionFleet(places=None, cold_wait=20.0)
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
    fleet = AdmissionFleet(places=None, cold_wait=20.0)
    task = await fleet.queue()
    fleet.clock.advance(20.0)
    fleet.admission.tick()
    with pytest.raises(NoReplicaError) as caught:
        await task
    assert caught.value.retry_after == 10.0
    assert str(caught.value) == "The model 'm' has had no ready replica for 20 s."
    fleet.assert_idle()


async def test_503_says_how_long_the_last_cold_start_took() -> None:
    fleet = AdmissionFleet(places=None, cold_wait=40.0)
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
    fleet = AdmissionFleet(
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


async def test_a_replica_that_blinks_costs_nobody_the_place_in_the_queue() -> None:
    fleet = AdmissionFleet(
        cold_wait=10.0, classes=(PriorityClass(name="standard", max_wait=100.0),)
    )
    held = await fleet.enter()
    task = await fleet.queue()
    fleet.clock.advance(50.0)
    fleet.places = None  # a probe has failed
    fleet.admission.tick()
    fleet.clock.advance(9.0)
    fleet.admission.tick()
    assert not task.done()
    fleet.places = 1
    fleet.admission.tick()
    assert not task.done()
    fleet.leave(held)
    slot = await task
    assert slot.waited == 59.0
    assert slot.cold_seconds == 9.0
    fleet.leave(slot)
    fleet.assert_idle()


async def test_a_replica_that_blinks_for_ever_does_not_hold_requests_for_ever() -> None:
    fleet = AdmissionFleet(cold_wait=10.0, classes=(PriorityClass(name="standard", max_wait=20.0),))
    held = await fleet.enter()
    task = await fleet.queue()
    for number in range(6):
        fleet.places = None if number % 2 else 1
        fleet.admission.tick()
        fleet.clock.advance(5.0)
        fleet.admission.tick()
    with pytest.raises(NoReplicaError, match="for 5 s"):
        await task
    fleet.leave(held)
    fleet.assert_idle()


async def test_who_has_somewhere_else_to_go_is_not_held_by_a_cold_model() -> None:
    fleet = AdmissionFleet(places=None)
    with pytest.raises(NoReplicaError):
        await fleet.enter(cold_wait=0.0)
    fleet.assert_idle()
    fleet.places = 1
    held = await fleet.enter()
    task = await fleet.queue(cold_wait=0.0)
    fleet.clock.advance(1.0)
    fleet.admission.tick()
    assert not task.done()  # it is only busy
    fleet.leave(held)
    fleet.leave(await task)
    fleet.assert_idle()


async def test_who_has_somewhere_else_to_go_waits_no_longer_than_its_class_was_promised() -> None:
    fleet = AdmissionFleet(classes=TWO)
    held = await fleet.enter(priority="high")
    tasks = [await fleet.queue(priority="high", can_move=can_move) for can_move in (True, False)]
    low = await fleet.queue(priority="low", can_move=True)  # nothing is promised
    fleet.clock.advance(2.0)
    fleet.admission.tick()
    with pytest.raises(QueueTimeoutError):
        await tasks[0]
    assert not any(task.done() for task in (tasks[1], low))
    for task in (tasks[1], low):
        fleet.leave(held)
        held = await task
    fleet.leave(held)
    fleet.assert_idle()


async def test_who_is_in_haste_goes_before_its_own_tenant_s_others_and_nobody_else_s() -> None:
    kind = PriorityClass(name="standard", ttft=5.0, order=QueueOrder.EDF)
    fleet = AdmissionFleet(classes=(kind,), burst=0.0)
    held = await fleet.enter("b")
    tasks = {
        "b": await fleet.queue("b", prompt_tokens=10),
        "usual": await fleet.queue("a", prompt_tokens=10),
        "in haste": await fleet.queue("a", prompt_tokens=10, ttft=0.1),
        "b later": await fleet.queue("b", prompt_tokens=10),
    }
    order = []
    while tasks:
        fleet.leave(held)
        done, _ = await asyncio.wait(
            tasks.values(), timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED
        )
        (name,) = [name for name, task in tasks.items() if task in done]
        order.append(name)
        held = tasks.pop(name).result()
    fleet.leave(held)
    assert order == ["b", "in haste", "b later", "usual"]
    fleet.assert_idle()


async def test_a_full_queue_refuses_and_room_for_a_higher_class_is_made() -> None:
    fleet = AdmissionFleet(classes=TWO, total_bounds=QueueBounds(requests=2))
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


async def test_the_lowest_class_gives_way_first_whatever_model_it_waits_for() -> None:
    classes = (
        PriorityClass(name="high", rank=2),
        PriorityClass(name="mid", rank=1, sheddable=True),
        PriorityClass(name="low", sheddable=True),
    )
    fleet = AdmissionFleet(
        classes=classes, total_bounds=QueueBounds(requests=3), draw=lambda: 0.9999
    )
    fleet.places = 0
    near = await fleet.queue(priority="mid")
    far = [await fleet.queue(priority=kind, lane="n") for kind in ("low", "mid")]
    high = [await fleet.queue(priority="high")]
    await asyncio.wait({far[0], near}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    assert [task.done() for task in (far[0], near, far[1])] == [True, False, False]
    high.append(await fleet.queue(priority="high"))
    for task in (far[0], near):
        with pytest.raises(RequestShedError):
            await task
    fleet.places = 9
    fleet.admission.wake()
    for task in (*high, far[1]):
        fleet.leave(await task)
    fleet.assert_idle()


async def test_a_class_that_is_not_sheddable_never_gives_way() -> None:
    classes = (PriorityClass(name="high", rank=1), PriorityClass(name="low"))
    fleet = AdmissionFleet(classes=classes, total_bounds=QueueBounds(requests=1))
    held = await fleet.enter(priority="high")
    low = await fleet.queue(priority="low")
    with pytest.raises(QueueFullError):
        await fleet.enter(priority="high")
    fleet.leave(held)
    fleet.leave(await low)


async def test_shedding_begins_gently_before_the_queue_is_full() -> None:
    draws = iter([0.39, 0.41, 0.0])
    fleet = AdmissionFleet(
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
    fleet = AdmissionFleet(classes=TWO, draw=lambda: 0.5)
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
