"""What the response cache costs: lookups, keeping, and how long the event loop is held meanwhile.

python benchmarks/gateway/cache.py [--entries 20000]
"""

import argparse
import asyncio
import json
import resource
import statistics
import time

from headrace.config.fleet.cache import CacheConfig
from headrace.core.clock import SystemClock
from headrace.fleet.cache.build import open_cache
from headrace.observe.metrics import Metrics
from headrace.web.asgi import Message, Send, send_body

CHAT = "/v1/chat/completions"


def body(number: int) -> bytes:
    text = f"Question {number}: " + "what is the matter? " * 20
    return json.dumps(
        {"messages": [{"role": "user", "content": text}], "temperature": 0, "stream": False}
    ).encode()


def answer(number: int, times: int) -> bytes:
    message = {"role": "assistant", "content": f"Answer {number}. " * 60 * times}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return json.dumps({"id": "x", "created": 1, "choices": [choice], "usage": {}}).encode()


async def lateness(late: list[float]) -> None:
    """How late a timer fires: what others do to the event loop."""
    while True:
        wanted = time.perf_counter() + 0.001
        await asyncio.sleep(0.001)
        late.append(time.perf_counter() - wanted)


def shown(name: str, seconds: list[float]) -> None:
    cuts = statistics.quantiles(seconds, n=100)
    print(f"{name:<22} p50 {cuts[49] * 1e6:7.0f} us   p99 {cuts[98] * 1e6:7.0f} us")


async def main(entries: int) -> None:
    from headrace.fleet.cache.serving import serve

    config = CacheConfig(enabled=True, max_entries=entries // 2, max_bytes=1 << 30)
    cache = open_cache(config, SystemClock(), Metrics())

    async def ignore(message: Message) -> None:
        return

    async def admitted() -> None:
        return

    async def ask(number: int, times: int = 1) -> None:
        said = answer(number, times)

        async def make(send: Send) -> None:
            await send_body(send, said)

        inquiry = cache.ask(path=CHAT, body=json.loads(body(number)), tenant="t", model="m")
        await serve(cache, inquiry, ignore, make, admitted)

    misses: list[float] = []
    for number in range(entries):
        started = time.perf_counter()
        await ask(number)
        misses.append(time.perf_counter() - started)
        if number == entries // 2:
            at_bound = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    await cache.settle()
    hits: list[float] = []
    for number in range(entries - 2000, entries):
        started = time.perf_counter()
        await ask(number)
        hits.append(time.perf_counter() - started)
    late: list[float] = []
    watcher = asyncio.ensure_future(lateness(late))
    for number in range(500):  # long answers, at a pace at which only one that blocks is late
        await ask(entries + number // 2, times=40)
        await asyncio.sleep(0.004)
    watcher.cancel()
    shown("miss, made at once", misses)
    shown("hit", hits)
    shown("event loop late by", late)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - at_bound
    print(f"memory beyond the bound: {grown / 1024:.1f} MiB after {entries // 2} more answers")
    await cache.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--entries", type=int, default=20_000)
    asyncio.run(main(parser.parse_args().entries))
