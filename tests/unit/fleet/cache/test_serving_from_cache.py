import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.answer_stores import BrokenStore, DictStore, HangingStore
from tests.support.fake_clock import FakeClock
from tests.support.in_process_gateway import until

from headrace.config.fleet.cache import CacheConfig, CacheMode
from headrace.core.errors import BadRequestError, OverloadedError, UnavailableError
from headrace.fleet.cache.front import ResponseCache, Result
from headrace.fleet.cache.serving import Outcome, serve
from headrace.fleet.cache.store import Store
from headrace.fleet.sse import parse
from headrace.observe import cache_metrics as names
from headrace.observe.metrics import Metrics
from headrace.web.asgi import JSON, Message, Send, send_body, start_message
from headrace.web.problems import HttpError

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "2+2?"}], "temperature": 0}
STREAM = {**BODY, "stream": True}
WHOLE = {
    "id": "old", "object": "chat.completion", "created": 5, "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "4"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}  # fmt: skip


class Gateway:
    """A cache before a made-up fleet."""

    def __init__(self, store: Store | None = None, **config: Any) -> None:
        self.clock = FakeClock()
        self.metrics = Metrics()
        self.cache = ResponseCache(
            CacheConfig(enabled=True, **config), store or DictStore(), self.clock, self.metrics
        )
        self.made = 0
        self.told_now = 0
        self.is_full = False
        self.status = 200
        self.answer: Any = WHOLE
        self.gate = asyncio.Event()
        self.gate.set()

    @contextlib.asynccontextmanager
    async def admit(self) -> AsyncIterator[None]:
        if self.is_full:
            raise OverloadedError("too many")
        self.told_now += 1
        try:
            yield
        finally:
            self.told_now -= 1

    async def make(self, send: Send) -> None:
        self.made += 1
        await self.gate.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        if isinstance(self.answer, bytes):
            await send(start_message(200, "text/event-stream"))
            for at in range(0, len(self.answer), 37):
                piece = self.answer[at : at + 37]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
            return
        await send_body(send, json.dumps(self.answer).encode(), status=self.status)

    async def ask(
        self, body: Any = BODY, header: str | None = None, **fields: Any
    ) -> "tuple[Heard, Outcome]":
        asked = {"path": CHAT, "tenant": "t", "model": "m", "header": header, **fields}
        inquiry = self.cache.ask(body=body, **asked)
        heard = Heard()
        outcome = await serve(self.cache, inquiry, heard.send, self.make, self.admit)
        await self.cache.settle()
        return heard, outcome

    def counted(self, result: Result) -> float:
        return self.metrics.value(names.CACHE_REQUESTS, ("m", result))


class Heard:
    """What a client got."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def send(self, message: Message) -> None:
        self.messages.append(message)

    @property
    def headers(self) -> dict[str, str]:
        return {k.decode(): v.decode() for k, v in self.messages[0]["headers"]}

    @property
    def body(self) -> bytes:
        assert not self.messages[-1].get("more_body")
        return b"".join(m.get("body", b"") for m in self.messages[1:])

    @property
    def said(self) -> Any:
        return json.loads(self.body)


async def test_the_second_time_it_is_a_hit() -> None:
    gateway = Gateway()
    first, outcome = await gateway.ask()
    assert (first.headers["x-headrace-cache"], outcome) == ("miss", Outcome(Result.MISS))
    gateway.clock.advance(7.5)
    second, outcome = await gateway.ask()
    assert second.headers == {
        "content-type": JSON, "content-length": str(len(second.body)), "x-headrace-cache": "hit", "age": "7",
    }  # fmt: skip
    assert outcome == Outcome(Result.HIT, WHOLE["usage"])
    assert second.said["id"].startswith("chatcmpl-")
    assert {**second.said, "id": "old"} == {**WHOLE, "choices": [{**WHOLE["choices"][0]}]}
    third, _ = await gateway.ask()
    assert third.said["id"] != second.said["id"]
    assert gateway.made == 1
    assert [gateway.counted(r) for r in Result] == [2, 1, 0, 0, 0]


async def test_a_whole_answer_is_told_as_a_stream_and_the_reverse() -> None:
    gateway = Gateway()
    await gateway.ask()
    streamed, _ = await gateway.ask({**STREAM, "stream_options": {"include_usage": True}})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert parse(streamed.body)[-1].is_end
    other = Gateway()
    other.answer = streamed.body
    first, _ = await other.ask({**STREAM, "stream_options": {"include_usage": True}})
    assert first.body == streamed.body
    whole, outcome = await other.ask()
    assert outcome.result is Result.HIT
    assert whole.said["choices"][0]["message"]["content"] == "4"
    assert whole.said["usage"] == WHOLE["usage"]


async def test_tenants_never_see_each_others_answers() -> None:
    gateway = Gateway()
    await gateway.ask(tenant="a")
    _, outcome = await gateway.ask(tenant="b")
    assert outcome.result is Result.MISS
    assert gateway.made == 2


async def test_requests_that_leave_something_to_chance_are_not_cached_unless_asked() -> None:
    gateway = Gateway()
    chance = {**BODY, "temperature": 0.7}
    for _ in range(2):
        heard, outcome = await gateway.ask(chance)
        assert (heard.headers["x-headrace-cache"], outcome.result) == ("bypass", Result.BYPASS)
    assert gateway.made == 2
    await gateway.ask(chance, "use")
    _, outcome = await gateway.ask(chance, " USE ")
    assert outcome.result is Result.HIT
    _, outcome = await gateway.ask(chance, key_mode=CacheMode.USE)
    assert outcome.result is Result.HIT


async def test_bypass_refresh_and_only() -> None:
    gateway = Gateway()
    with pytest.raises(HttpError) as caught:
        await gateway.ask(header="only")
    assert (caught.value.status, gateway.made) == (504, 0)
    await gateway.ask(header="bypass")
    with pytest.raises(HttpError):
        await gateway.ask(header="only")
    await gateway.ask(header="refresh")
    assert (await gateway.ask(header="only"))[1].result is Result.HIT
    gateway.answer = {**WHOLE, "created": 6}
    assert (await gateway.ask(header="refresh"))[0].said["created"] == 6
    assert (await gateway.ask())[0].said["created"] == 6
    assert gateway.made == 3


async def test_a_keys_bypass_cannot_be_overruled() -> None:
    gateway = Gateway()
    for header in ("use", "refresh", None):
        _, outcome = await gateway.ask(header=header, key_mode=CacheMode.BYPASS)
        assert outcome.result is Result.BYPASS
    assert gateway.made == 3


async def test_a_header_that_says_nothing_is_refused() -> None:
    with pytest.raises(BadRequestError, match="use, bypass"):
        await Gateway().ask(header="yes")


async def test_errors_and_odd_ends_are_not_kept() -> None:
    gateway = Gateway()
    gateway.status = 400
    await gateway.ask()
    gateway.status = 200
    gateway.answer = {**WHOLE, "choices": [{"index": 0, "finish_reason": "error"}]}
    await gateway.ask()
    gateway.answer = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    await gateway.ask(STREAM)
    gateway.answer = UnavailableError("down")
    with pytest.raises(UnavailableError):
        await gateway.ask()
    gateway.answer = WHOLE
    assert (await gateway.ask())[1].result is Result.MISS
    assert gateway.metrics.value(names.CACHE_STORES, ("unfit",)) == 2


async def test_long_answers_are_not_kept() -> None:
    gateway = Gateway(max_entry_bytes=1024)
    message = {"role": "assistant", "content": "x" * 2000}
    gateway.answer = {
        **WHOLE,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }
    heard, _ = await gateway.ask()
    assert heard.said == gateway.answer
    assert (await gateway.ask())[1].result is Result.MISS
    assert gateway.metrics.value(names.CACHE_STORES, ("too_large",)) == 2


async def test_long_hits_are_read_in_a_thread() -> None:
    gateway = Gateway()
    message = {"role": "assistant", "content": "x" * 100_000}
    gateway.answer = {
        **WHOLE,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }
    await gateway.ask()
    heard, outcome = await gateway.ask()
    assert outcome.result is Result.HIT
    assert heard.said["choices"] == gateway.answer["choices"]


async def test_a_broken_store_is_a_miss() -> None:
    gateway = Gateway(BrokenStore())
    for _ in range(2):
        heard, outcome = await gateway.ask()
        assert (heard.said, outcome.result) == (WHOLE, Result.MISS)
    await gateway.cache.update_gauges()
    assert gateway.metrics.value(names.CACHE_ERRORS, ()) == 5


async def test_identical_requests_in_flight_are_made_once() -> None:
    gateway = Gateway()
    gateway.gate.clear()
    waiting = [asyncio.ensure_future(gateway.ask()) for _ in range(20)]
    await asyncio.sleep(0.01)
    await gateway.cache.update_gauges()
    assert gateway.metrics.value(names.CACHE_FLIGHTS, ()) == 1
    gateway.gate.set()
    results = await asyncio.gather(*waiting)
    assert gateway.made == 1
    assert [heard.said for heard, _ in results] == [WHOLE] * 20
    assert sorted(heard.headers["x-headrace-cache"] for heard, _ in results) == [
        "miss", *["shared"] * 19
    ]  # fmt: skip
    assert (gateway.counted(Result.SHARED), gateway.counted(Result.MISS)) == (19, 1)
    assert (await gateway.ask())[1].result is Result.HIT


async def test_a_client_that_leaves_takes_nobody_with_it() -> None:
    gateway = Gateway()
    gateway.gate.clear()
    leader, *others = [asyncio.ensure_future(gateway.ask()) for _ in range(3)]
    await asyncio.sleep(0.01)
    leader.cancel()
    await asyncio.sleep(0.01)
    gateway.gate.set()
    assert [heard.said for heard, _ in await asyncio.gather(*others)] == [WHOLE] * 2
    assert gateway.made == 1
    assert leader.cancelled()


async def test_without_single_flight_each_is_made() -> None:
    gateway = Gateway(single_flight=False)
    gateway.gate.clear()
    waiting = [asyncio.ensure_future(gateway.ask()) for _ in range(3)]
    await asyncio.sleep(0.01)
    gateway.gate.set()
    await asyncio.gather(*waiting)
    assert gateway.made == 3


async def test_routes_without_a_cache_and_caches_that_are_off() -> None:
    gateway = Gateway()
    heard, outcome = await gateway.ask(path="/v1/responses")
    assert outcome.result is Result.BYPASS
    assert "x-headrace-cache" not in heard.headers
    off = ResponseCache(CacheConfig(), DictStore(), gateway.clock, gateway.metrics)
    inquiry = off.ask(path=CHAT, body=BODY, tenant="", model="m")
    assert inquiry is not None
    assert not any((inquiry.may_look, inquiry.may_keep, inquiry.may_share))


async def test_hits_and_shared_answers_are_asked_about_too() -> None:
    gateway = Gateway()
    await gateway.ask()
    gateway.is_full = True
    with pytest.raises(OverloadedError):
        await gateway.ask()
    body = {**BODY, "max_tokens": 3}
    gateway.gate.clear()
    waiting = [asyncio.ensure_future(gateway.ask(body)) for _ in range(3)]
    await asyncio.sleep(0.01)
    gateway.gate.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == [
        "OverloadedError", "OverloadedError", "tuple"
    ]  # fmt: skip
    assert gateway.cache.flights.held_bytes == 0


async def test_an_answer_that_is_told_takes_a_place_until_it_is_told() -> None:
    gateway = Gateway()
    gateway.gate.clear()
    waiting = [asyncio.ensure_future(gateway.ask()) for _ in range(3)]
    await asyncio.sleep(0.01)
    assert gateway.told_now == 0  # nothing is told before there is something
    gateway.gate.set()
    await asyncio.gather(*waiting)
    places: list[int] = []

    async def slow(message: Message) -> None:
        places.append(gateway.told_now)

    inquiry = gateway.cache.ask(body=BODY, path=CHAT, tenant="t", model="m")
    outcome = await serve(gateway.cache, inquiry, slow, gateway.make, gateway.admit)
    assert outcome.result is Result.HIT
    assert set(places) == {1}
    assert gateway.told_now == 0


@pytest.mark.parametrize("seconds", [-61.0, 3601.0, 1e9])
async def test_an_answer_of_another_time_is_made_anew(seconds: float) -> None:
    gateway = Gateway()
    await gateway.ask()
    gateway.clock.set_wall(seconds)
    await gateway.ask()
    assert gateway.made == 2
    await gateway.ask()
    assert gateway.made == 2


async def test_what_is_heard_for_the_cache_is_bounded_over_all() -> None:
    gateway = Gateway(max_flights_bytes=1024, single_flight=False)
    gateway.gate.clear()
    asked = [asyncio.ensure_future(gateway.ask({**BODY, "seed": n})) for n in range(40)]
    await asyncio.sleep(0.01)
    gateway.gate.set()
    await asyncio.gather(*asked)
    kept = gateway.metrics.value(names.CACHE_STORES, ("kept",))
    assert 0 < kept < 40
    assert gateway.metrics.value(names.CACHE_STORES, ("too_large",)) == 40 - kept
    assert gateway.cache._heard.held == 0
    gateway.answer = UnavailableError("no")
    with pytest.raises(UnavailableError):
        await gateway.ask({**BODY, "seed": 99})
    gateway.answer = {"choices": []}
    await gateway.ask({**BODY, "seed": 99})
    assert gateway.cache._heard.held == 0


async def test_answers_that_wait_for_a_slow_store_are_bounded_in_bytes():
    store = HangingStore()
    gateway = Gateway(store, max_flights_bytes=100_000, max_entry_bytes=40_000)
    message = {"role": "assistant", "content": "4" * 30_000}
    gateway.answer = {
        **WHOLE, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }  # fmt: skip
    for number in range(20):
        inquiry = gateway.cache.ask(
            path=CHAT, tenant="t", model="m", body={**BODY, "number": number}
        )
        await serve(gateway.cache, inquiry, Heard().send, gateway.make, gateway.admit)
        await until(lambda: gateway.cache._heard.held == store.waiting, "the store has it")
        assert store.waiting <= 100_000
    assert gateway.made == 20
    assert store.waiting > 60_000  # what fits waits, and the rest is let go of
    store.goes_on.set()
    await gateway.cache.settle()
    assert gateway.metrics.value(names.CACHE_STORES, ("too_large",)) == 17
    assert (gateway.cache._heard.held, len(store.values)) == (0, 3)


@pytest.mark.parametrize("store", [DictStore(), BrokenStore()], ids=["kept", "broken"])
@pytest.mark.parametrize("is_good", [True, False])
async def test_nothing_is_held_when_an_answer_was_kept_or_could_not_be(store, is_good):
    gateway = Gateway(store)
    if not is_good:
        gateway.answer = {**WHOLE, "choices": [{**WHOLE["choices"][0], "finish_reason": "error"}]}
    await gateway.ask()
    assert gateway.cache._heard.held == 0
