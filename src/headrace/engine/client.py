"""The server's view of one engine: submit, cancel, health, load and park; its process is restarted when it ends."""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from headrace.config.engine import EngineConfig
from headrace.core.clock import Clock
from headrace.core.errors import InternalError, UnavailableError
from headrace.core.events import FinishReason
from headrace.core.model_info import ModelInfo
from headrace.core.request import Request
from headrace.core.stats import EngineStats, ReplicaState
from headrace.engine.adapter_orders import AdapterOrders
from headrace.engine.channel import ChannelError
from headrace.engine.dues import Dues
from headrace.engine.failure import account, cause, start_error
from headrace.engine.launch import EngineProcess
from headrace.engine.messages import (
    AdapterAnswer,
    Cancel,
    Codec,
    Drain,
    Failed,
    Load,
    Park,
    Progress,
    Ready,
    Resume,
    State,
    Stop,
    Submit,
    ToEngine,
    Unload,
    Update,
)
from headrace.engine.open_streams import OpenStreams
from headrace.engine.orders import Orders
from headrace.engine.stream import EventStream
from headrace.engine.supervisor import RESTART_DELAYS, WATCH_PERIOD, EngineEnd, Hooks, Supervisor

#: A life this long makes the next restart a first one again.
STABLE_SECONDS = 60.0

#: Starts a process that loads this at once, or with None waits for a Load.
Launcher = Callable[[EngineConfig | None], EngineProcess]

log = logging.getLogger("headrace.engine")


class EngineClient:
    """One engine process and its successors. Everything happens on the event loop's thread."""

    def __init__(
        self,
        launcher: Launcher,
        clock: Clock,
        *,
        watchdog_timeout: float,
        on_update: Callable[[Update], None] = lambda _: None,
        restart_delays: tuple[float, float] = RESTART_DELAYS,
    ) -> None:
        self._clock = clock
        self.on_update = on_update
        self.on_progress: Callable[[Progress], None] = lambda _: None
        self.on_adapters: Callable[[ModelInfo], None] = lambda _: None
        self.on_restart: Callable[[ModelInfo], None] = lambda _: None
        """Told when it is ready again after its process had ended."""
        self._codec = Codec()
        hooks = Hooks(
            launch=lambda: launcher(self._config),
            began=self._begin_life,
            frames=self._on_frames,
            is_stuck=self._is_stuck,
            ended=self._end_life,
            is_stable=self._was_stable,
        )
        period = min(WATCH_PERIOD, watchdog_timeout / 4)
        self._supervisor = Supervisor(hooks, watch_period=period, restart_delays=restart_delays)
        self._dues = Dues(clock, watchdog_timeout)
        self._streams = OpenStreams(lambda *which: self._send(Cancel(*which)), self._dues)
        self._adapters = AdapterOrders(self._send)
        self._orders = Orders(self._send)
        self._config: EngineConfig | None = None
        """What is served, or is being loaded."""
        self._served: EngineConfig | None = None
        """What was last: its adapters are loaded again with it."""
        self._is_first = True
        """The process loads what it was started with, for the first time."""
        self._outcome: asyncio.Future[ModelInfo | None] | None = None
        """Of the start or load that goes on."""
        self._failed: Failed | None = None
        self._phase = "start"
        self._loaded: ModelInfo | None = None
        """Of an engine that loads its predecessor's adapters before it counts as ready."""
        self._is_ready = False
        self._is_empty = True
        """There is no process, or it is there and waits for a Load."""
        self._ready_since: float | None = None
        self.info: ModelInfo | None = None
        self.stats = EngineStats()

    # -- state ------------------------------------------------------------------------------------

    @property
    def state(self) -> ReplicaState:
        """Loading until the engine has said that it is ready, and again after it died.

        Draining from the moment it is told to drain or park; parked, or empty, when it has said so.
        """
        if self._is_empty:
            return ReplicaState.EMPTY
        if not self._is_ready:
            return ReplicaState.LOADING
        return ReplicaState.DRAINING if self._orders.is_leaving else self._orders.said

    @property
    def num_open(self) -> int:
        """Requests whose events are not all here."""
        return len(self._streams)

    @property
    def num_restarts(self) -> int:
        """Of its process."""
        return self._supervisor.num_restarts

    @property
    def unready_reason(self) -> str | None:
        """Why requests should go elsewhere, in one sentence; None when they should not. O(1)."""
        if self._is_empty:
            return "No model is loaded."
        if not self._is_ready:
            return f"The model is loading (phase '{self._phase}')."
        if (state := self.state) is not ReplicaState.READY:
            return f"The engine is {state.value}."
        if self._dues.is_late:
            return f"The engine has made no step for {self._dues.stalled:.0f} s."
        return None

    @property
    def pid(self) -> int | None:
        """Process id of the engine, while there is one."""
        return None if (process := self._supervisor.process) is None else process.pid

    # -- requests -----------------------------------------------------------------------------------

    def submit(self, *requests: Request) -> EventStream:
        """Hand requests to the engine; their events come in one stream.

        Raises UnavailableError while there is no engine, and then none was taken.
        """
        self._check(is_good=self.state is ReplicaState.READY)
        return self._streams.open(requests, lambda request: self._send(Submit(request)))

    def cancel(self, request_id: str, index: int | None = None) -> None:
        """End a request, or one of its sequences; its events then say so."""
        if request_id in self._streams:
            self._send(Cancel(request_id, index))

    def finish_open(self, reason: FinishReason) -> None:
        """End every open request now, for those who read its events and in the engine."""
        self._streams.finish_all(reason)

    async def load_adapter(self, name: str, path: str, *, in_place: bool = False) -> None:
        """Serve a LoRA adapter, also after a restart; `info` has it then. Raises HeadraceError."""
        self._check(is_good=self.state is ReplicaState.READY)
        await self._adapters.load(name, path, in_place=in_place)

    async def unload_adapter(self, name: str) -> None:
        """Take no new requests for an adapter; those that run go on. Raises HeadraceError."""
        self._check(is_good=self.state is ReplicaState.READY)
        await self._adapters.unload(name)

    # -- orders -----------------------------------------------------------------------------------

    def drain(self) -> None:
        """Have the engine take no new requests; those that run go on."""
        self._orders.tell(Drain(), is_there=self._is_ready)

    async def park(self) -> None:
        """Have it give back all memory but the weights'; what still runs ends with an error.

        Raises UnavailableError for an engine that has no model, or ends before it is parked.
        """
        self._check(is_good=self._is_ready)
        await self._orders.reach(Park())

    async def resume(self) -> None:
        """Have it take requests again, drained or parked. Raises as `park`."""
        self._check(is_good=self._is_ready)
        await self._orders.reach(Resume())

    async def load(self, config: EngineConfig) -> ModelInfo:
        """Have it serve a model in the place of what is there. One load at a time.

        Raises EngineStartError (EngineConfigError among them) for what cannot be loaded, then it is empty;
        UnavailableError while its process starts.
        """
        if self.state is ReplicaState.LOADING:
            raise UnavailableError("The engine process is starting.")
        self._leave_model("The engine was unloaded.", "UnavailableError")
        if config != self._served:
            self._adapters.forget()
        self._config = self._served = config
        self._is_empty, self._failed, self._phase = False, None, "load"
        self._expect()
        self._send(Load(engine=config))
        info = await self.wait_ready()
        assert info is not None
        return info

    async def unload(self) -> None:
        """Have it give everything back; what still runs ends with an error. Raises as `park`."""
        self._check(is_good=self._is_ready)
        self._config = None  # also for a process that takes its place
        await self._orders.reach(Unload())

    # -- life ---------------------------------------------------------------------------------------

    async def start(
        self, process: EngineProcess | None = None, *, config: EngineConfig | None = None
    ) -> None:
        """Begin to supervise. Does not wait.

        `process` is one that was launched already, with `config` or, waiting for a Load, with none: then it is
        told to load `config`, which also a process that takes its place will serve.
        """
        self._config, self._is_first, self._is_empty = config, True, False
        self._served = config or self._served
        self._expect()
        self._supervisor.start(process)

    async def wait_ready(self) -> ModelInfo | None:
        """The end of what `start` or `load` began; None: it waits for a Load. Raises EngineStartError."""
        if self._outcome is None:
            raise InternalError("The engine client was not started.")
        return await asyncio.shield(self._outcome)

    async def close(self) -> None:
        """Stop the engine and end what still runs with an error. It may be started again."""
        if self._outcome is not None:
            self._outcome.cancel()
        self._is_ready = False
        await self._supervisor.stop(self._codec.encode(Stop()))
        self._leave_model(reason := "The server is shutting down.", "UnavailableError")
        self._orders.ended(reason)
        self._is_empty = True

    def _expect(self) -> None:
        self._outcome = asyncio.get_running_loop().create_future()
        # A failure that nobody waits for is not an error of the event loop's.
        self._outcome.add_done_callback(lambda f: f.cancelled() or f.exception())

    def _leave_model(self, reason: str, kind: str) -> None:
        """What was served is no more."""
        self._is_ready, self._loaded, self.info = False, None, None
        self.stats = EngineStats()
        self._orders.forget()
        self._fail_streams(reason, kind)

    def _begin_life(self) -> None:
        self._failed, self._phase, self._ready_since = None, "start", None

    def _end_life(self, end: EngineEnd) -> Callable[[float], None] | None:
        """The process is gone; None when no other is to take its place."""
        self._is_ready, self._is_empty, self._loaded = False, False, None
        if (error := end.error) is not None:
            self._failed = Failed(phase="start", kind=type(error).__name__, message=str(error))
        why = cause(self._failed, end.status)
        self._fail_streams("The engine process ended while this request ran.")
        self._orders.ended(why)
        if was_loading := self._is_loading:
            self._fail_load(account(self._failed, self._phase, end.status))
        if was_loading and self._is_first:
            return None
        return lambda delay: log.error("%s It is restarted in %.1f s.", why, delay)

    def _was_stable(self) -> bool:
        """The life that has just ended was ready, and for long."""
        since = self._ready_since
        return since is not None and self._clock.monotonic() - since > STABLE_SECONDS

    def _is_stuck(self) -> bool:
        if not self._is_ready or not self._dues.is_stuck:
            return False
        log.critical("The engine has made no step for %.0f s; it is killed", self._dues.stalled)
        self._is_ready = False
        return True

    @property
    def _is_loading(self) -> bool:
        return self._outcome is not None and not self._outcome.done()

    def _fail_load(self, failed: Failed) -> None:
        """The load that runs has failed: nothing is served."""
        self._config = None
        if self._outcome is not None:
            self._outcome.set_exception(start_error(failed))

    # -- what the engine says -----------------------------------------------------------------------

    def _on_frames(self, frames: list[bytes]) -> None:
        for payload in frames:
            try:
                message = self._codec.to_server(payload)
            except msgspec.DecodeError:
                log.exception("A message of the engine does not decode; the engine is restarted")
                self._supervisor.abort()
                return
            if isinstance(message, Update):
                self._take(message)
            elif isinstance(message, Ready):
                self._loaded = message.info
                self._phase = "adapters"
                self._adapters.fail("The engine was loaded anew.")
                self._adapters.restore(message.info.adapters, self._become_ready)
            elif isinstance(message, State):
                self._take_state(message.state)
            elif isinstance(message, AdapterAnswer):
                self._take_answer(message)
            elif isinstance(message, Progress):
                self._phase = message.phase
                self.on_progress(message)
            else:
                self._failed = message

    def _take_state(self, state: ReplicaState) -> None:
        if state is ReplicaState.PARKED:
            self._adapters.fail("The engine was parked.")
        elif state is ReplicaState.EMPTY:
            self._become_empty()
        self._orders.note(state)

    def _become_empty(self) -> None:
        """It is there without a model: at its start, after Unload, after a load that failed."""
        self._is_first = False
        failed, self._failed = self._failed, None
        if self._is_loading and failed is not None:
            self._fail_load(failed)
        if self._config is not None:
            self._send(Load(engine=self._config))
            return
        self._leave_model("The engine was unloaded.", "UnavailableError")
        self._is_empty = True
        if self._outcome is not None and self._is_loading:
            self._outcome.set_result(None)

    def _take_answer(self, answer: AdapterAnswer) -> None:
        if answer.adapters is not None:
            changes = {"adapters": answer.adapters}
            if self._loaded is not None:
                self._loaded = msgspec.structs.replace(self._loaded, **changes)
            elif self.info is not None:
                self.info = msgspec.structs.replace(self.info, **changes)
                self.on_adapters(self.info)
        self._adapters.take(answer)

    def _become_ready(self) -> None:
        info, self._loaded = self._loaded, None
        if info is None:
            return
        self.info = info
        self.stats = EngineStats(blocks_total=info.num_blocks, blocks_free=info.num_blocks)
        self._is_ready, self._is_first = True, False
        self._orders.loaded()
        self._ready_since = self._clock.monotonic()
        self._dues.clear()
        self._dues.splits_prompts = info.splits_prompts
        if self._outcome is not None and self._is_loading:
            self._outcome.set_result(info)
        else:
            log.warning("The engine is ready again")
            self.on_restart(info)

    def _take(self, update: Update) -> None:
        if update.events or update.steps:
            self._dues.note_progress()
        if update.stats is not None:
            self.stats = update.stats
            self._dues.waits_until = update.stats.waits_until
        for event in update.events:
            self._streams.push(event)
        self.on_update(update)

    def _check(self, *, is_good: bool) -> None:
        if not is_good:
            raise UnavailableError(self.unready_reason or "The engine is not ready.")

    def _send(self, message: ToEngine) -> None:
        try:
            self._supervisor.send(self._codec.encode(message))
        except ChannelError as error:
            if isinstance(message, Submit):
                raise UnavailableError(f"The engine is not reachable: {error}") from None

    def _fail_streams(self, reason: str, kind: str = "EngineDeadError") -> None:
        self._adapters.fail(reason)
        self._streams.fail_all(reason, kind)
