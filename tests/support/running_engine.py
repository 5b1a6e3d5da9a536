"""A real engine process with a fake engine behind a real client, for the tests of clients."""

import asyncio

from tests.support import fake_engine
from tests.support.patience import PATIENCE

from headrace.config.engine import EngineConfig, ModelConfig
from headrace.core.clock import SystemClock
from headrace.core.request import Request, TokenSegment
from headrace.core.sampling import SamplingParams
from headrace.engine.client import EngineClient
from headrace.engine.launch import LaunchSpec, launch


def of(model):
    return EngineConfig(model=ModelConfig(model=model))


def spec(model="fake", **fields):
    return LaunchSpec(
        engine=None if model is None else EngineConfig(model=ModelConfig(model=model)),
        build=fake_engine.BUILD,
        environment={"PYTHONPATH": fake_engine.python_path()},
        log_level="error",
        **fields,
    )


def request(request_id="r", *, ids=(5, 6, 7), max_tokens=4, n=1, **fields):
    return Request(
        request_id=request_id,
        prompt=(TokenSegment(list(ids)),),
        params=SamplingParams(max_tokens=max_tokens),
        n=n,
        **fields,
    )


class Running:
    """A client as an async context."""

    def __init__(self, model="fake", *, watchdog_timeout=PATIENCE, wait=True, clock=None):
        self.updates = []
        self._wait = wait
        self._model = model
        self.client = EngineClient(
            lambda config: launch(spec(config and config.model.model), SystemClock()),
            clock or SystemClock(),
            watchdog_timeout=watchdog_timeout,
            on_update=self.updates.append,
            restart_delays=(0.01, 0.1),
        )

    async def __aenter__(self):
        config = None if self._model is None else of(self._model)
        await self.client.start(config=config)
        if self._wait:
            await self.client.wait_ready()
        return self.client

    async def __aexit__(self, *exc):
        await self.client.close()


async def until(condition):
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  conditions of all kinds
            await asyncio.sleep(0.005)


def tokens(events, index=0):
    return [t for e in events if e.index == index for t in e.token_ids]


async def read(stream):
    return [event async for event in stream]
