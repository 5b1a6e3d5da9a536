"""One request by way of the cache: told from it, shared with one in flight, or made and heard.

    inquiry = cache.ask(path=..., body=..., tenant=..., model=..., header=..., key_mode=...)
    outcome = await serve(cache, inquiry, send, make, admit)

`make(send)` is the request without a cache: it sends an answer as ASGI has it, or raises before it has sent anything.
It may run in a task of its own and outlive its client, for as long as others listen; so what must be done when it
ends (settling a budget, say) belongs into it.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from typing import Any, Final

from msgspec import Struct

from headrace.fleet.cache.flights import USAGE, Make
from headrace.fleet.cache.front import RESPONSE_HEADER, Hit, Inquiry, ResponseCache, Result
from headrace.fleet.cache.recorder import Recorder
from headrace.web.asgi import Message, Send, start_message

#: Names the model that answered in place of the one that was asked: such an answer is not kept under that one's name.
FALLBACK_HEADER: Final = "x-headrace-fallback"


Admit = Callable[[], AbstractAsyncContextManager[None]]
"""May the client have an answer that costs nothing? Raises what it is told instead; left when the answer was told."""


class Outcome(Struct, frozen=True):
    """What became of a request."""

    result: Result
    usage: dict[str, Any] | None = None
    """OpenAI's usage object of the making. Where that was another request's, nothing was computed for this one."""

    @property
    def was_made(self) -> bool:
        """Its own `make` answered."""
        return self.result in (Result.MISS, Result.BYPASS)


async def serve(
    cache: ResponseCache, inquiry: Inquiry | None, send: Send, make: Make, admit: Admit
) -> Outcome:
    """Answer the request. Raises what `make` and `admit` raise, and HttpError 504 for one that wants a hit and has none.

    `admit` is asked before an answer is told that need not be made for this request; `make` does its own asking.
    """
    if inquiry is None:
        await make(send)
        return Outcome(Result.BYPASS)
    hit = await cache.lookup(inquiry)
    if hit is not None:
        async with admit():
            cache.count(inquiry, hit.result)
            await _tell(hit, inquiry.question.is_stream, send)
        return Outcome(hit.result, hit.answer.usage)
    if not inquiry.may_share:
        result = Result.MISS if inquiry.may_keep else Result.BYPASS
        cache.count(inquiry, result)
        await _heard(cache, inquiry, _marked(send, result), make)
        return Outcome(result)
    return await _listen(cache, inquiry, send, make, admit)


async def _listen(
    cache: ResponseCache, inquiry: Inquiry, send: Send, make: Make, admit: Admit
) -> Outcome:
    async def made(hear: Send) -> None:
        await _heard(cache, inquiry, hear, make)

    listener = await cache.flights.join(inquiry.question.flight_key, made)
    result = Result.MISS if listener.is_first else Result.SHARED
    try:
        async with nullcontext() if listener.is_first else admit():
            cache.count(inquiry, result)
            send = _marked(send, result)
            await send(await listener.head())
            async with aclosing(listener.chunks()) as chunks:
                async for chunk in chunks:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
    finally:
        listener.close()
    return Outcome(result, listener.usage)


async def _heard(cache: ResponseCache, inquiry: Inquiry, send: Send, make: Make) -> None:
    """Made, and kept if it is good."""
    recorder = cache.recorder(inquiry)
    if recorder is None:
        await make(send)
        return
    ear = _Ear(send, recorder)
    is_whole = False
    try:
        await make(ear.send)
        is_whole = ear.is_good and ear.is_complete
    finally:
        if not is_whole:
            recorder.close()
    if is_whole:
        cache.keep_soon(inquiry, recorder)


class _Ear:
    """Passes everything on and remembers it."""

    def __init__(self, send: Send, recorder: Recorder) -> None:
        self._send = send
        self._recorder = recorder
        self.is_good = False
        self.is_complete = False

    async def send(self, message: Message) -> None:
        """ASGI."""
        if message["type"] == "http.response.start":
            names = {name for name, _ in message.get("headers", ())}
            self.is_good = message["status"] == 200 and FALLBACK_HEADER.encode() not in names
        elif self.is_good:
            self._recorder.feed(message.get("body", b""))
            self.is_complete = not message.get("more_body", False)
            self._recorder.usage = message.get(USAGE)
        await self._send(message)


def _marked(send: Send, result: Result) -> Send:
    line = (RESPONSE_HEADER.encode(), result.encode())

    async def marked(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), line]}
        await send(message)

    return marked


async def _tell(hit: Hit, is_stream: bool, send: Send) -> None:
    if is_stream:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
    else:
        headers = {"content-length": str(len(hit.body))}
    await send(start_message(200, hit.content_type, headers, hit.headers))
    await send({"type": "http.response.body", "body": hit.body})
