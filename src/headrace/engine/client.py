"""The server's view of one engine: submit, cancel, health; restarts the process when it ends."""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from headrace.core.clock import Clock
from headrace.core.errors import (
    InternalError,
    UnavailableError,
)
from headrace.core.events import FinishReason
from headrace.core.model_info import ModelInfo
from headrace.core.request import Request
from headrace.core.stats import EngineStats, ReplicaState
from headrace.engine.adapter_orders import AdapterOrders
from headrace.engine.async_channel import AsyncChannel
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
    State,
    Stop,
    Submit,
    ToEngine,
    Update,
)
from headrace.engine.stream import EventStream

#: Seconds before the first restart; doubled for each that fails, up to the second value.
RESTART_DELAYS = (0.2, 30.0)
#: A life this long makes the next restart a first one again.
STABLE_SECONDS = 60.0
#: Seconds between two looks of the watchdog.
WATCH_PERIOD = 1.0
#: Seconds that a stuck engine gets to write its stacks before it is killed, and to stop at the end.
DUMP_SECONDS = 0.5
STOP_SECONDS = 2.0

log = logging.getLogger("headrace.engine")


class EngineClient:
    """One engine process and its successors. Everything happens on the event loop's thread."""

    def __init__(
        self,
        launcher: Callable[[], EngineProcess],
        clock: Clock,
        *,
        watchdog_timeout: float,
        on_update: Callable[[Update], None] = lambda _: None,
        on_progress: Callable[[Progress], None] = lambda _: None,
        on_ready: Callable[[ModelInfo], None] = lambda _: None,
        on_adapters: Callable[[ModelInfo], None] = lambda _: None,
        restart_delays: tuple[float, float] = RESTART_DELAYS,
    ) -> None:
        self._launcher = launcher
        self._clock = clock
        self._watchdog_timeout = watchdog_timeout
        self.on_update = on_update
        self._on_progress = on_progress
        self._on_ready = on_ready
        self._on_adapters = on_adapters
        self._restart_delays = restart_delays
        self._codec = Codec()
        self._streams: dict[str, EventStream] = {}
        self._process: EngineProcess | None = None
        self._channel: AsyncChannel | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._first_ready: asyncio.Future[ModelInfo] | None = None
        self._failed: Failed | None = None
        self._phase = "start"
        self._dues = Dues(clock, watchdog_timeout)
        self._adapters = AdapterOrders(self._send)
        self._loaded: ModelInfo | None = None
        """Of an engine that loads its predecessor's adapters before it counts as ready."""
        self._is_ready = False
        self._ready_since: float | None = None
        self._said = ReplicaState.READY
        """What the engine last said that it is, since it was loaded."""
        self._order: Drain | Park | None = None
        """What it was told to be; told again to one that was restarted."""
        self.info: ModelInfo | None = None
        self.stats = EngineStats()
        self.num_restarts = 0

    # -- state ------------------------------------------------------------------------------------

    @property
    def state(self) -> ReplicaState:
        """Loading until the engine has said that it is ready, and again after it died.

        Draining from the moment it is told to drain or park; parked when it has said so.
        """
        if not self._is_ready:
            return ReplicaState.LOADING
        if self._order is not None and self._said is ReplicaState.READY:
            return ReplicaState.DRAINING
        return self._said

    @property
    def num_open(self) -> int:
        """Requests whose events are not all here."""
        return len(self._streams)

    @property
    def unready_reason(self) -> str | None:
        """Why requests should go elsewhere, in one sentence; None when they should not. O(1)."""
        if not self._is_ready:
            return f"The model is loading (phase '{self._phase}')."
        if self.state is not ReplicaState.READY:
            return f"The engine is {self.state.value}."
        if self._dues.is_late:
            return f"The engine has made no step for {self._dues.stalled:.0f} s."
        return None

    @property
    def pid(self) -> int | None:
        """Process id of the engine, while there is one."""
        return self._process.pid if self._process is not None else None

    # -- requests -----------------------------------------------------------------------------------

    def submit(self, *requests: Request) -> EventStream:
        """Hand requests to the engine; their events come in one stream.

        Raises UnavailableError while there is no engine, and then none was taken.
        """
        self._check_ready()
        keys = [(r.request_id, index) for r in requests for index in range(r.n)]
        stream = EventStream(keys, self._cancel_sequence)
        try:
            for request in requests:
                self._send(Submit(request))
                self._streams[request.request_id] = stream
                self._dues.add(request)
        except UnavailableError:
            stream.close()  # those that were sent already
            raise
        return stream

    def cancel(self, request_id: str, index: int | None = None) -> None:
        """End a request, or one of its sequences; its events then say so."""
        if request_id in self._streams:
            self._send(Cancel(request_id, index))

    def finish_open(self, reason: FinishReason) -> None:
        """End every open request now, for those who read its events and in the engine."""
        for request_id, stream in tuple(self._streams.items()):
            stream.finish_all(reason)
            self._cancel_sequence(request_id, None)

    async def load_adapter(self, name: str, path: str, *, in_place: bool = False) -> None:
        """Serve a LoRA adapter, also after a restart; `info` has it then. Raises HeadraceError."""
        self._check_ready()
        await self._adapters.load(name, path, in_place=in_place)

    async def unload_adapter(self, name: str) -> None:
        """Take no new requests for an adapter; those that run go on. Raises HeadraceError."""
        self._check_ready()
        await self._adapters.unload(name)

    def drain(self) -> None:
        """Have the engine take no new requests; those that run go on."""
        self._tell(Drain())

    def park(self) -> None:
        """Have it give back the model's memory; what still runs ends with an error."""
        self._tell(Park())

    def load(self) -> None:
        """Have it load its model anew and take requests again. Does nothing while it loads."""
        self._order = None
        if self._is_ready:
            self._is_ready = False
            self._send(Load())

    # -- life ---------------------------------------------------------------------------------------

    async def start(self, process: EngineProcess | None = None) -> None:
        """Begin to supervise; `process` is one that was launched already. Does not wait for ready."""
        self._first_ready = asyncio.get_running_loop().create_future()
        # A failure that nobody waits for is not an error of the event loop's.
        self._first_ready.add_done_callback(lambda f: f.cancelled() or f.exception())
        self._supervisor = asyncio.create_task(self._supervise(process), name="engine supervisor")

    async def wait_ready(self) -> ModelInfo:
        """The first Ready. Raises EngineStartError when the engine could not start."""
        if self._first_ready is None:
            raise InternalError("The engine client was not started.")
        return await asyncio.shield(self._first_ready)

    async def close(self) -> None:
        """Stop the engine and end what still runs with an error."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
            self._supervisor = None
        if self._first_ready is not None:
            self._first_ready.cancel()
        self._is_ready = False
        if self._channel is not None and not self._channel.closed.done():
            self._send(Stop())
        await self._end_process(STOP_SECONDS)
        self._fail_streams("The server is shutting down.", "UnavailableError")

    async def _supervise(self, process: EngineProcess | None) -> None:
        delay = self._restart_delays[0]
        while True:
            status = await self._one_life(process)
            process = None
            if self._first_ready is not None and not self._first_ready.done():
                self._first_ready.set_exception(
                    start_error(account(self._failed, self._phase, status))
                )
                return
            if self._was_stable():
                delay = self._restart_delays[0]
            log.error("%s It is restarted in %.1f s.", cause(self._failed, status), delay)
            await asyncio.sleep(delay)
            delay = min(2 * delay, self._restart_delays[1])
            self.num_restarts += 1

    def _was_stable(self) -> bool:
        """The life that has just ended was ready, and for long."""
        since = self._ready_since
        return since is not None and self._clock.monotonic() - since > STABLE_SECONDS

    async def _one_life(self, process: EngineProcess | None) -> int | None:
        """From the process's start to its end; its exit status, None if it could not be started."""
        self._failed, self._phase, self._ready_since = None, "start", None
        try:
            self._process = process or self._launcher()
        except OSError as error:
            self._failed = Failed(phase="start", kind=type(error).__name__, message=str(error))
            return None
        await self._live(self._process)
        self._is_ready, self._loaded = False, None
        self._fail_streams("The engine process ended while this request ran.")
        return await self._end_process(0.0)

    async def _live(self, process: EngineProcess) -> None:
        """From the connection to its end."""
        self._channel = await AsyncChannel.open(process.socket, self._on_frames)
        watchdog = asyncio.create_task(self._watch(process), name="engine watchdog")
        try:
            await asyncio.shield(self._channel.closed)
        finally:
            watchdog.cancel()

    async def _watch(self, process: EngineProcess) -> None:
        """Kill an engine that has work and finishes no step."""
        period = min(WATCH_PERIOD, self._watchdog_timeout / 4)
        while True:
            await asyncio.sleep(period)
            if not self._is_ready or not self._dues.is_stuck:
                continue
            log.critical("The engine has made no step for %.0f s; it is killed", self._dues.stalled)
            self._is_ready = False
            process.dump_stacks()
            await asyncio.sleep(DUMP_SECONDS)
            process.kill()
            return

    async def _end_process(self, patience: float) -> int | None:
        """Wait for the process to end, kill it after `patience` seconds. Returns its exit status."""
        process, self._process = self._process, None
        if process is None:
            return None
        status = await asyncio.to_thread(process.wait, max(patience, DUMP_SECONDS))
        if self._channel is not None:
            self._channel.abort()
            self._channel = None
        if status is None:
            process.kill()
            status = await asyncio.to_thread(process.wait, None)
        return status

    # -- messages -----------------------------------------------------------------------------------

    def _on_frames(self, frames: list[bytes]) -> None:
        for payload in frames:
            try:
                message = self._codec.to_server(payload)
            except msgspec.DecodeError:
                log.exception("A message of the engine does not decode; the engine is restarted")
                if self._channel is not None:
                    self._channel.abort()
                return
            if isinstance(message, Update):
                self._take(message)
            elif isinstance(message, Ready):
                self._loaded = message.info
                self._phase = "adapters"
                self._adapters.fail("The engine was loaded anew.")
                self._adapters.restore(message.info.adapters, self._become_ready)
            elif isinstance(message, State):
                self._said = message.state
                if message.state is ReplicaState.PARKED:
                    self._adapters.fail("The engine was parked.")
            elif isinstance(message, AdapterAnswer):
                self._take_answer(message)
            elif isinstance(message, Progress):
                self._phase = message.phase
                self._on_progress(message)
            else:
                self._failed = message

    def _take_answer(self, answer: AdapterAnswer) -> None:
        if answer.adapters is not None:
            changes = {"adapters": answer.adapters}
            if self._loaded is not None:
                self._loaded = msgspec.structs.replace(self._loaded, **changes)
            elif self.info is not None:
                self.info = msgspec.structs.replace(self.info, **changes)
                self._on_adapters(self.info)
        self._adapters.take(answer)

    def _become_ready(self) -> None:
        info, self._loaded = self._loaded, None
        if info is None:
            return
        self.info = info
        self.stats = EngineStats(blocks_total=info.num_blocks, blocks_free=info.num_blocks)
        self._is_ready = True
        self._said = ReplicaState.READY
        if self._order is not None:
            self._send(self._order)
        self._ready_since = self._clock.monotonic()
        self._dues.clear()
        self._dues.splits_prompts = info.splits_prompts
        self._on_ready(info)
        if self._first_ready is not None and not self._first_ready.done():
            self._first_ready.set_result(info)
        else:
            log.warning("The engine is ready again")

    def _take(self, update: Update) -> None:
        if update.events or update.steps:
            self._dues.note_progress()
        if update.stats is not None:
            self.stats = update.stats
            self._dues.waits_until = update.stats.waits_until
        for event in update.events:
            if event.finish is not None:
                self._dues.settle(event.request_id)
            stream = self._streams.get(event.request_id)
            if stream is None:
                continue
            stream.push(event)
            if event.finish is not None and not stream.has_open(event.request_id):
                self._streams.pop(event.request_id, None)
        self.on_update(update)

    def _cancel_sequence(self, request_id: str, index: int | None) -> None:
        """The reader wants no more of a sequence, or of a whole request."""
        stream = self._streams.get(request_id)
        if stream is None:
            return
        self._send(Cancel(request_id, index))
        if index is None or not stream.has_open(request_id):
            del self._streams[request_id]

    def _check_ready(self) -> None:
        if self.state is not ReplicaState.READY:
            raise UnavailableError(self.unready_reason or "The engine is not ready.")

    def _send(self, message: ToEngine) -> None:
        if self._channel is None:
            return
        try:
            self._channel.send(self._codec.encode(message))
        except ChannelError as error:
            if isinstance(message, Submit):
                raise UnavailableError(f"The engine is not reachable: {error}") from None

    def _tell(self, order: Drain | Park) -> None:
        self._order = order
        if self._is_ready:  # else it is told as soon as it is
            self._send(order)

    def _fail_streams(self, reason: str, kind: str = "EngineDeadError") -> None:
        self._dues.clear()
        self._adapters.fail(reason)
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(reason, kind)
