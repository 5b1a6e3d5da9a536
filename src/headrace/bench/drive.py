"""Send a run's requests: so many clients at a time (closed loop), or at given times (open loop)."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from headrace.bench.client import Outcome
from headrace.bench.workload import Item
from headrace.core.clock import Clock

Send = Callable[[Item, float], Awaitable[Outcome]]
"""Sends an item that is due at a `Clock.monotonic` time."""


async def closed_loop(
    items: Iterator[Item], concurrency: int, send: Send, clock: Clock
) -> list[Outcome]:
    """Each of `concurrency` clients sends its next request when its last one has ended."""
    outcomes: list[Outcome] = []

    async def work() -> None:
        for item in items:
            outcomes.append(await send(item, clock.monotonic()))

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(work())
    return outcomes


async def open_loop(
    items: Iterator[Item], max_in_flight: int, send: Send, clock: Clock
) -> list[Outcome]:
    """Each request is sent at its time, however many run; beyond `max_in_flight` it is not sent."""
    outcomes: list[Outcome] = []
    running: set[asyncio.Task[Outcome]] = set()
    start = clock.monotonic()
    async with asyncio.TaskGroup() as group:
        for item in items:
            due = start + item.at
            await asyncio.sleep(max(0.0, due - clock.monotonic()))
            if len(running) >= max_in_flight:
                outcomes.append(Outcome(due=due, chunks=[], ended=due, error="not sent"))
                continue
            task = group.create_task(_await(send(item, due)))
            running.add(task)
            task.add_done_callback(running.discard)
            task.add_done_callback(lambda done: outcomes.append(done.result()))
    return outcomes


async def _await(answer: Awaitable[Outcome]) -> Outcome:
    return await answer
