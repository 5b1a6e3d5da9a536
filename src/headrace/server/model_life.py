"""The life of one served model: started, loaded, parked, woken, unloaded. One change at a time."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from headrace.config.engine import EngineConfig
from headrace.config.server import ServerConfig
from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError, InternalError, UnavailableError
from headrace.core.events import FinishReason
from headrace.core.model_info import ModelInfo
from headrace.core.stats import ReplicaState
from headrace.engine.launch import EngineProcess
from headrace.engine.messages import Progress
from headrace.preprocess.prepare import Preparer
from headrace.server.served_model import ServedModel
from headrace.server.text import TextFront

#: Seconds that requests get to tell their clients that they were cut short.
END_SECONDS = 2.0

log = logging.getLogger("headrace.server")


class ModelLife:
    """Everything happens on one event loop."""

    def __init__(
        self,
        model: ServedModel,
        config: EngineConfig,
        server: ServerConfig,
        clock: Clock,
        *,
        bind: Callable[[ServedModel, Preparer], None],
    ) -> None:
        """`bind` is told of a model that can serve, each time it can."""
        self.model = model
        self.config = config
        """What is served, or would be."""
        self._server = server
        self._clock = clock
        self._bind = bind
        self._text = TextFront(config.model, server, clock)
        self._lock = asyncio.Lock()
        self._is_back = asyncio.Event()
        self.text_seconds = 0.0
        """How long reading its tokenizer took."""
        client = model.client
        client.on_update = model.on_update
        client.on_progress = self._on_progress
        client.on_restart = self._on_restart
        client.on_adapters = self._on_adapters

    @property
    def state(self) -> ReplicaState:
        """Of the model."""
        return self.model.state

    @property
    def is_changing(self) -> bool:
        """It is being loaded, parked or unloaded."""
        return self._lock.locked()

    # -- start and end ----------------------------------------------------------------------------

    async def begin(self, process: EngineProcess | None = None, *, is_empty: bool = False) -> None:
        """Start the engine, or take a process that was launched already; does not wait."""
        config = None if is_empty else self.config
        await self.model.client.start(process, config=config)

    async def become_ready(self) -> ModelInfo | None:
        """Wait for what `begin` began; None: it is there, and waits for a `load`. Raises HeadraceError."""
        info = await self.model.client.wait_ready()
        return None if info is None else await self._become_ready(info)

    async def open(self, process: EngineProcess | None) -> None:
        """Both of these; what cannot be loaded leaves no process behind. Raises HeadraceError."""
        async with self._lock:
            try:
                await self.begin(process)
                await self.become_ready()
            except BaseException:
                await self._end_engine()
                raise

    async def close(self) -> None:
        """End the engine; nobody should hold it. Its names are remembered."""
        async with self._lock:
            await self._end_engine()

    async def wait_back(self) -> None:
        """Wait for an engine whose process has ended and is started again."""
        model = self.model
        while model.preparer is None or model.client.state is ReplicaState.LOADING:
            self._is_back.clear()
            await self._is_back.wait()

    # -- orders -----------------------------------------------------------------------------------

    async def load(self, config: EngineConfig, patience: float) -> ModelInfo:
        """Serve another model, or this one anew, once the requests that hold it have ended.

        Raises HeadraceError for what cannot be loaded: then there is no model.
        """
        async with self._lock:
            if self.state is ReplicaState.LOADING:
                raise UnavailableError("The engine process is starting.")
            async with self._closed("The model is being replaced.", patience):
                await self._forget()
                self.config = config
                self._text = TextFront(config.model, self._server, self._clock)
                info = await self.model.client.load(config)
                try:
                    return await self._become_ready(info)
                except HeadraceError:
                    await self.model.client.unload()  # there is nothing to talk to it with
                    raise

    async def unload(self, patience: float) -> None:
        """Give everything back, once the requests that hold it have ended. Raises UnavailableError."""
        async with self._lock:
            if self.state is not ReplicaState.EMPTY:
                async with self._closed("The model is being unloaded.", patience):
                    await self.model.client.unload()
                    await self._forget()

    async def park(self, patience: float) -> None:
        """Give back all memory but the weights', once the requests that hold it have ended.

        After `patience` seconds they are cut short. Raises UnavailableError for a model that is not loaded.
        """
        async with self._lock:
            if self.state is not ReplicaState.PARKED:
                async with self._closed("The model is being parked.", patience):
                    await self.model.client.park()

    async def resume(self) -> None:
        """Take requests again, parked or drained. Raises UnavailableError for a model that is not loaded."""
        async with self._lock:
            self.model.closed = None
            if self.state is not ReplicaState.READY:
                await self.model.client.resume()

    async def drain(self, patience: float) -> bool:
        """Take no new requests until `resume`; whether those that hold it have ended in `patience` seconds."""
        async with self._lock:
            if self.model.client.state is not ReplicaState.READY:
                raise UnavailableError(self.model.unready_reason or "The model is not ready.")
            self.model.closed = "The model is draining."
        return await self.model.wait_unused(patience)

    # -- inside -----------------------------------------------------------------------------------

    @asynccontextmanager
    async def _closed(self, why: str, patience: float) -> AsyncIterator[None]:
        """Within, the model takes no requests, and those that it had have ended."""
        model = self.model
        model.closed = why
        try:
            if not await model.wait_unused(patience):
                log.warning("%s Cutting %d requests short", why, model.num_users)
                model.client.finish_open(FinishReason.SHUTDOWN)
                await model.wait_unused(END_SECONDS)
            yield
        finally:
            model.closed = None

    async def _become_ready(self, info: ModelInfo) -> ModelInfo:
        try:
            await self._text.load(info)
            preparer = self._text.preparer(info)
        except HeadraceError:
            raise
        except Exception as error:
            log.exception("The tokenizer could not be loaded")
            reason = f"{type(error).__name__}: {error}"
            raise InternalError(f"The tokenizer could not be loaded: {reason}.") from error
        # Another one if the engine was restarted meanwhile.
        info = self.model.info or info
        self.text_seconds = self._text.seconds
        self.model.known = info
        self.model.name_metrics(info, {**info.phases, "tokenizer": self.text_seconds})
        self._bind(self.model, preparer if info is preparer.info else self._text.preparer(info))
        self._is_back.set()
        return info

    async def _end_engine(self) -> None:
        await self.model.client.close()
        known = self.model.known
        await self._forget()
        self.model.known = known
        self._text = TextFront(self.config.model, self._server, self._clock)

    async def _forget(self) -> None:
        """What was kept for the model that is no longer loaded."""
        model = self.model
        model.preparer = model.known = None
        grammars, model.grammars = model.grammars, None
        model.engine_metrics.unloaded()
        if grammars is not None:
            await grammars.close()

    def _on_progress(self, progress: Progress) -> None:
        log.debug("engine phase %s at %.3f s", progress.phase, progress.seconds)
        # The engine has resolved its model: the tokenizer can be read while the weights are.
        if progress.phase in ("kernels", "weights", "memory"):
            self._text.begin_load()

    def _on_restart(self, info: ModelInfo) -> None:
        # A restarted engine may have fitted another context: requests are checked against that.
        if self.model.preparer is not None:
            self.model.restarted(info)
            self.model.known = info
            self._bind(self.model, self._text.preparer(info))
        self._is_back.set()

    def _on_adapters(self, info: ModelInfo) -> None:
        # Requests that are being prepared keep the names that they began with.
        if self.model.preparer is not None:
            self.model.known = info
            self.model.preparer = self.model.preparer.with_adapters(info)
