"""Random histories of requests, faults, deaths and departures, through a whole gateway.

Whatever happens: every stream that ends well says exactly what an undisturbed one says, one that does not ends with an
error, nothing is counted at the end, and the next request works.
"""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.fake_replica import FakeReplica, Fault, replicas, text_of
from tests.support.in_process_gateway import (
    ClientCall,
    InProcessGateway,
    gateway_over,
    quick,
    spec_of,
)

from headrace.config.fleet.gateway import TimeoutConfig

TIMEOUTS = TimeoutConfig(connect=0.5, first_token=0.1, between_tokens=0.1, total=5.0)
PLACES = st.sampled_from([-1, 0, 1, 150, 400, 900])
FAULTS = st.one_of(
    st.builds(Fault, cut_at=PLACES),
    st.builds(Fault, hang_at=PLACES),
    st.builds(Fault, error_at=st.sampled_from([150, 400, 900])),
    st.builds(Fault, status=st.sampled_from([400, 401, 404, 429, 500, 503])),
    st.builds(Fault, raw=st.sampled_from([b"HTTP/9 x\r\n\r\n", b"\x00" * 30])),
    st.just(Fault(closes=True)),
    st.just(Fault(delay=0.02)),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.booleans()),
        st.tuples(st.just("fault"), st.integers(0, 2), FAULTS),
        st.tuples(st.just("kill"), st.integers(0, 2)),
        st.tuples(st.just("start"), st.integers(0, 2)),
        st.tuples(st.just("leave"), st.integers(0, 9)),
        st.tuples(st.just("wait"), st.sampled_from([0.0, 0.005, 0.02])),
    ),
    min_size=3,
    max_size=25,
)


class History:
    def __init__(self, fakes: list[FakeReplica], gateway: InProcessGateway) -> None:
        self.fakes = fakes
        self.gateway = gateway
        self.calls: list[tuple[int, ClientCall]] = []
        self.left: set[ClientCall] = set()
        self.dead: set[int] = set()

    async def do(self, step: tuple) -> None:
        kind, *rest = step
        if kind == "ask":
            seed = len(self.calls)
            call = self.gateway.call(seed=seed, max_tokens=12, stream=rest[0])
            self.calls.append((seed, call))
        elif kind == "fault":
            self.fakes[rest[0]].faults.append(rest[1])
        elif kind == "kill" and rest[0] not in self.dead:
            self.dead.add(rest[0])
            await self.fakes[rest[0]].kill()
        elif kind == "start" and rest[0] in self.dead:
            self.dead.discard(rest[0])
            await self.fakes[rest[0]].start()
        elif kind == "leave" and self.calls:
            _, call = self.calls[rest[0] % len(self.calls)]
            call.leave()
            self.left.add(call)
        elif kind == "wait":
            await asyncio.sleep(rest[0])

    async def finish(self) -> None:
        for number in sorted(self.dead):
            await self.fakes[number].start()
        for seed, call in self.calls:
            await call.end()
            if not call.is_ended:
                assert call in self.left
            elif call.status == 200 and call.error is None:
                assert call.text == text_of(seed, 12)
            elif call.status == 200:
                assert text_of(seed, 12).startswith(call.text)
        for fake in self.fakes:
            fake.faults.clear()
        await self.gateway.ready(len(self.fakes))
        again = await self.gateway.ask(seed=99, max_tokens=3)
        assert again.text == text_of(99, 3)


@settings(max_examples=25)
@given(STEPS)
def test_whatever_happens(steps):
    async def run() -> None:
        async with replicas(3, gap=0.001) as fakes:
            config = quick([spec_of(fake) for fake in fakes], timeouts=TIMEOUTS)
            async with gateway_over(fakes, config) as gateway:
                history = History(fakes, gateway)
                for step in steps:
                    await history.do(step)
                await history.finish()

    asyncio.run(run())
