import asyncio
from contextlib import aclosing

import pytest
from tests.support.patience import PATIENCE

from headrace.core.errors import BadRequestError, UnavailableError
from headrace.fleet.cache.flights import Flights, Listener
from headrace.web.asgi import Send, start_message

KEY = b"k"


class Making:
    """A made-up answer, in the hands of the test."""

    def __init__(self) -> None:
        self.started = 0
        self.cancelled = 0
        self.gate = asyncio.Event()
        self.sent = 0
        self.chunks: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()

    async def __call__(self, send: Send) -> None:
        self.started += 1
        try:
            await self.gate.wait()
            first = True
            while (chunk := await self.chunks.get()) is not None:
                if isinstance(chunk, Exception):
                    raise chunk
                if first:
                    await send(start_message(200, "text/event-stream"))
                    first = False
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                self.sent += 1
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    def says(self, *chunks: bytes | Exception | None) -> None:
        self.gate.set()
        for chunk in chunks:
            self.chunks.put_nowait(chunk)


def flights(max_bytes: int = 1000, max_total_bytes: int = 10_000) -> Flights:
    return Flights(max_bytes=max_bytes, max_total_bytes=max_total_bytes)


async def heard(listener: Listener, most: int = 10_000) -> list[bytes]:
    found: list[bytes] = []
    async with aclosing(listener.chunks()) as chunks:
        async for chunk in chunks:
            found.append(chunk)
            if len(found) == most:
                break
    return found


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_one_answer_for_all_from_its_start() -> None:
    air, making = flights(), Making()
    making.says(b"a", b"b")
    first = await air.join(KEY, making)
    assert await heard(first, 2) == [b"a", b"b"]
    late = await air.join(KEY, making)
    assert (first.is_first, late.is_first) == (True, False)
    making.says(b"c", None)
    assert await heard(late) == [b"a", b"b", b"c"]
    assert await heard(first) == [b"c"]
    assert making.started == 1
    assert air.num_flights == 0
    first.close()
    late.close()
    assert air.held_bytes == 0


async def test_the_making_goes_on_when_the_first_client_leaves() -> None:
    air, making = flights(), Making()
    making.says(b"a")
    first = await air.join(KEY, making)
    second = await air.join(KEY, making)
    first.close()
    making.says(b"b", None)
    assert await heard(second) == [b"a", b"b"]
    assert making.cancelled == 0
    second.close()


async def test_it_stops_when_the_last_one_leaves() -> None:
    air, making = flights(), Making()
    making.says(b"a")
    listeners = [await air.join(KEY, making) for _ in range(3)]
    for listener in listeners:
        listener.close()
    await settled()
    assert (making.cancelled, air.num_flights, air.held_bytes) == (1, 0, 0)


async def test_last_words_of_a_making_that_was_stopped_are_held_for_nobody() -> None:
    air, started, ended = flights(max_bytes=100), asyncio.Event(), asyncio.Event()

    async def make(send: Send) -> None:
        await send(start_message(200, "text/event-stream"))
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await send({"type": "http.response.body", "body": b"x" * 200})
            ended.set()

    listener = await air.join(KEY, make)
    await started.wait()
    listener.close()
    async with asyncio.timeout(PATIENCE):
        await ended.wait()
    assert (air.held_bytes, air.num_flights) == (0, 0)


async def test_a_client_that_leaves_before_the_head_stops_it() -> None:
    air, making = flights(), Making()
    waiting = asyncio.ensure_future(air.join(KEY, making))
    await settled()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await settled()
    assert (making.started, making.cancelled, air.num_flights) == (1, 1, 0)


async def test_another_makes_it_when_the_first_failed_before_a_byte() -> None:
    air, broken, good = flights(), Making(), Making()
    good.says(b"a", None)
    first = asyncio.ensure_future(air.join(KEY, broken))
    await settled()
    others = [asyncio.ensure_future(air.join(KEY, good)) for _ in range(5)]
    await settled()
    broken.says(UnavailableError("full"))
    with pytest.raises(UnavailableError):
        await first
    listeners = await asyncio.gather(*others)
    assert [await heard(listener) for listener in listeners] == [[b"a"]] * 5
    assert (broken.started, good.started) == (1, 1)
    assert sum(listener.is_first for listener in listeners) == 1


async def test_faults_of_the_request_are_everybodys() -> None:
    air, making = flights(), Making()
    waiting = [asyncio.ensure_future(air.join(KEY, making)) for _ in range(3)]
    await settled()
    making.says(BadRequestError("no"))
    assert {type(e) for e in await asyncio.gather(*waiting, return_exceptions=True)} == {
        BadRequestError
    }
    assert (making.started, air.num_flights) == (1, 0)


async def test_turns_end() -> None:
    air = flights()
    making = Making()
    making.says(*[UnavailableError("down")] * 50)
    waiting = [asyncio.ensure_future(air.join(KEY, making)) for _ in range(30)]
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(error) for error in results} == {UnavailableError}
    assert making.started <= 3


async def test_a_failure_in_the_middle_comes_behind_what_was_made() -> None:
    air, making = flights(), Making()
    making.says(b"a", UnavailableError("broke"))
    listener = await air.join(KEY, making)
    chunks = listener.chunks()
    assert await anext(chunks) == b"a"
    with pytest.raises(UnavailableError):
        await anext(chunks)
    listener.close()


async def test_a_making_that_is_cancelled_from_outside_is_not_complete() -> None:
    air = flights()

    async def make(send: Send) -> None:
        await send(start_message(200, "x"))
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        raise asyncio.CancelledError

    listener = await air.join(KEY, make)
    with pytest.raises(Exception, match="given up"):
        await heard(listener)
    listener.close()


async def test_the_slowest_holds_the_making_back_and_nobody_loses_a_byte() -> None:
    air, making = flights(max_bytes=100), Making()
    pieces = [bytes([65 + i]) * 30 for i in range(20)]
    making.says(*pieces, None)
    fast = await air.join(KEY, making)
    slow = await air.join(KEY, making)
    reading = asyncio.ensure_future(heard(fast))
    await settled()
    assert making.sent < 6
    assert air.held_bytes <= 130
    late = await air.join(KEY, making)
    assert not late.is_first  # nothing was dropped: the slow one has read nothing
    assert await heard(slow, 3) == pieces[:3]
    late.close()
    assert await heard(slow) == pieces[3:]
    assert await reading == pieces
    assert air.num_flights == 0


async def test_newcomers_who_would_miss_the_beginning_get_their_own() -> None:
    air, making, other = flights(max_bytes=100), Making(), Making()
    pieces = [bytes([65 + i]) * 30 for i in range(10)]
    making.says(*pieces)
    first = await air.join(KEY, making)
    assert await heard(first, 10) == pieces
    other.says(b"x", None)
    late = await air.join(KEY, other)
    assert late.is_first
    making.says(None)
    assert await heard(first) == []
    assert await heard(late) == [b"x"]
    assert air.num_flights == 0


async def test_all_flights_together_have_a_bound() -> None:
    air = flights(max_bytes=1 << 20, max_total_bytes=300_000)
    listeners = []
    for number in range(20):
        making = Making()
        making.says(*[b"x" * 10_000] * 40)
        listeners.append(await air.join(bytes([number]), making))
    readers = [asyncio.ensure_future(heard(listener, 40)) for listener in listeners]
    await asyncio.gather(*readers)
    assert air.held_bytes <= 20 * 75_000
    for listener in listeners:
        listener.close()
    await settled()
    assert (air.held_bytes, air.num_flights) == (0, 0)
