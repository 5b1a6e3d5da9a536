"""The whole HTTP application over a fake engine, in this process and without sockets."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from msgspec import convert, structs
from tests.support.fake_engine import FakeEngine, FakeOptions, fake_info
from tests.support.fake_server import write_byte_tokenizer

from headrace.config.engine import EngineConfig
from headrace.config.server import ServerConfig
from headrace.core import errors
from headrace.core.clock import SystemClock
from headrace.core.events import FinishReason
from headrace.core.model_info import ModelInfo
from headrace.core.request import Request
from headrace.core.stats import ReplicaState
from headrace.engine.messages import AdapterOrder
from headrace.engine.stream import EventStream
from headrace.observe.metrics import Metrics
from headrace.preprocess.load import load_text
from headrace.server.app import build_app
from headrace.server.lora_root import LoraRoot
from headrace.server.replica import Replica
from headrace.server.served_model import ServedModel


class InProcessClient:
    """Behaves like engine.client.EngineClient: steps the engine on the event loop, or holds it still."""

    pid = None  # no process of its own

    def __init__(self, engine: FakeEngine, info: ModelInfo) -> None:
        self.info = info
        self.state = ReplicaState.READY
        self.unready_reason = None
        self.is_held = False
        """No steps are made."""
        self._engine = engine
        self.on_adapters: Callable[[ModelInfo], None] = lambda info: None
        self._streams: dict[str, EventStream] = {}
        self._pump: asyncio.Task[None] | None = None

    def submit(self, *requests: Request) -> EventStream:
        stream = EventStream([(r.request_id, i) for r in requests for i in range(r.n)], self._drop)
        for request in requests:
            self._streams[request.request_id] = stream
            for event in self._engine.add(request):
                stream.push(event)
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._run())
        return stream

    def cancel(self, request_id: str, index: int | None = None) -> None:
        for event in self._engine.cancel(request_id, index):
            self._streams[request_id].push(event)

    async def load_adapter(self, name: str, path: str, *, in_place: bool = False) -> None:
        await self._order(AdapterOrder(job=1, name=name, path=path, in_place=in_place))

    async def unload_adapter(self, name: str) -> None:
        await self._order(AdapterOrder(job=1, name=name))

    async def _order(self, order: AdapterOrder) -> None:
        self._engine.order_adapter(order)
        (answer,) = self._engine.take_adapter_answers()
        if answer.error is not None:
            raise getattr(errors, answer.error_kind)(answer.error)
        self.info = structs.replace(self.info, adapters=answer.adapters)
        self.on_adapters(self.info)

    def finish_open(self, reason: FinishReason) -> None:
        for request_id, stream in tuple(self._streams.items()):
            stream.finish_all(reason)
            self._drop(request_id, None)

    @property
    def num_open(self) -> int:
        return self._engine.stats().num_running + self._engine.stats().num_waiting

    async def _run(self) -> None:
        while self._engine.has_work():
            for event in () if self.is_held else self._engine.step():
                self._streams[event.request_id].push(event)
            await asyncio.sleep(0)

    def _drop(self, request_id: str, index: int | None) -> None:
        self._engine.cancel(request_id, index)


class InProcess:
    """An application and a client of it. An async context manager."""

    def __init__(
        self,
        folder: Path,
        *,
        max_context: int = 2048,
        lora_root: str | None = None,
        **server: Any,
    ) -> None:
        config = convert(server, ServerConfig, dec_hook=lambda kind, value: kind(value))
        options = FakeOptions(tokenizer=str(write_byte_tokenizer(folder / "tokenizer")))
        engine_config = EngineConfig()
        info = fake_info(engine_config, options)
        clock = SystemClock()
        self.replica = Replica(config, clock, Metrics())
        self.engine = InProcessClient(FakeEngine(options, clock), info)
        root = None if lora_root is None else LoraRoot(lora_root)
        client: Any = self.engine
        self.model = model = ServedModel(client, self.replica.metrics, clock, lora_root=root)
        model.name_metrics(info, {})
        self.replica.models["fake"] = model
        self.replica.bind(model, load_text(options.tokenizer).preparer(info, config, clock))

        def on_adapters(info: ModelInfo) -> None:
            assert model.preparer is not None
            model.preparer = model.preparer.with_adapters(info)

        self.engine.on_adapters = on_adapters
        self.app = build_app(self.replica)
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app, raise_app_exceptions=False),
            base_url="http://test",
        )

    async def __aenter__(self) -> "InProcess":
        if self.replica.batches is not None:
            self.replica.batches.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.http.aclose()
        if self.replica.batches is not None:
            await self.replica.batches.close()
        self.replica.workers.close()
