"""`headrace serve`, second part: the event loop's life, from ready to the last answer."""

import asyncio
import gc
import importlib
import logging
import signal
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from uvicorn.config import Config

from headrace import __version__
from headrace.config.root import ServeConfig
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError, HeadraceError, InternalError
from headrace.core.model_info import ModelInfo
from headrace.engine.client import EngineClient
from headrace.engine.failure import EngineStartError
from headrace.engine.launch import EngineProcess, LaunchSpec, launch
from headrace.engine.messages import Progress
from headrace.observe.metrics import Metrics
from headrace.server.app import build_app, build_inner
from headrace.server.lora_root import LoraRoot
from headrace.server.replica import Replica, ServedModel
from headrace.server.sockets import socket_protocol
from headrace.server.text import TextFront
from headrace.web.http_server import HttpServer, allow_open_files, http_config
from headrace.web.port import url_of
from headrace.web.protocol import ConnectionBounds

if TYPE_CHECKING:
    from headrace.server.rpc.service import RpcServer

#: Seconds between two pings of a WebSocket; one that does not answer in `stall_timeout` is closed.
PING_PERIOD = 20.0
#: Seconds for the last messages of calls that a drain has ended.
FLUSH_SECONDS = 5.0
#: Open files beside the connections that count: probes, the engine, the model, logs.
SPARE_FILES = 128

log = logging.getLogger("headrace.server")


def serve(
    config: ServeConfig,
    spec: LaunchSpec,
    sock: socket.socket,
    process: EngineProcess,
    clock: Clock,
    *,
    lora_root: LoraRoot | None = None,
) -> int:
    """Run the event loop until the server is told to end; the exit code."""
    import uvloop

    allow_open_files(config.server.max_connections + SPARE_FILES)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        serving = Serving(config, spec, clock, lora_root=lora_root)
        return runner.run(serving.run(sock, process))


class Serving:
    """One server process: HTTP on one side, the engine on the other."""

    def __init__(
        self,
        config: ServeConfig,
        spec: LaunchSpec,
        clock: Clock,
        *,
        lora_root: LoraRoot | None = None,
    ) -> None:
        self._config = config
        self._spec = spec
        self._clock = clock
        self._replica = Replica(config.server, clock, Metrics())
        self._text = TextFront(config, clock)
        self._model = self._add_model(lora_root)
        self._http = HttpServer(_uvicorn_config(self._replica))
        self._num_signals = 0
        self._drain: asyncio.Task[None] | None = None
        self._error: HeadraceError | None = None
        self._rpc: RpcServer | None = None

    async def run(self, sock: socket.socket, process: EngineProcess) -> int:
        """From the first connection to the last; the exit code."""
        self._handle_signals()
        await self._model.client.start(process)
        if self._replica.batches is not None:
            self._replica.batches.start()
        ready = asyncio.create_task(self._become_ready(sock), name="become ready")
        try:
            await self._http.serve(sockets=[sock])
        finally:
            ready.cancel()
            await asyncio.gather(ready, return_exceptions=True)
            if self._rpc is not None:
                await self._rpc.stop(0.0)
            await self._replica.close()
        if self._error is not None:
            # Last, so that the operator finds it at the end of the output.
            raise self._error
        return 0

    # -- start ------------------------------------------------------------------------------------

    def _add_model(self, lora_root: LoraRoot | None) -> ServedModel:
        client = EngineClient(
            lambda: launch(self._spec, self._clock),
            self._clock,
            watchdog_timeout=self._config.server.watchdog_timeout,
            on_progress=self._on_progress,
            on_ready=self._on_ready,
            on_adapters=self._on_adapters,
        )
        model = ServedModel(client, self._replica.metrics, self._clock, lora_root=lora_root)
        client.on_update = model.on_update
        self._replica.models[self._spec.engine.model.model] = model
        return model

    def _on_progress(self, progress: Progress) -> None:
        log.debug("engine phase %s at %.3f s", progress.phase, progress.seconds)
        # The engine has resolved its model: the tokenizer can be read while the weights are.
        if progress.phase in ("kernels", "weights", "memory"):
            self._text.begin_load()

    def _on_ready(self, info: ModelInfo) -> None:
        # A restarted engine may have fitted another context: requests are checked against that.
        if self._model.preparer is not None:
            self._model.restarted(info)
            self._replica.bind(self._model, self._text.preparer(info))

    def _on_adapters(self, info: ModelInfo) -> None:
        # Requests that are being prepared keep the names that they began with.
        if self._model.preparer is not None:
            self._model.preparer = self._model.preparer.with_adapters(info)

    async def _become_ready(self, sock: socket.socket) -> None:
        try:
            info, _ = await asyncio.gather(self._model.client.wait_ready(), self._start_grpc())
            await self._text.load(info)
        except HeadraceError as error:
            self._fail_start(error)
            return
        except Exception as error:
            # Nobody waits for this task: what is not told here would leave a server that never loads.
            log.exception("The tokenizer could not be loaded")
            reason = f"{type(error).__name__}: {error}"
            self._fail_start(InternalError(f"The tokenizer could not be loaded: {reason}."))
            return
        info = self._model.info or info  # another one if the engine was restarted meanwhile
        # What exists now lives as long as the process: keep the collector away from it.
        gc.collect()
        gc.freeze()
        gc.enable()
        phases = {**info.phases, "tokenizer": self._text.seconds, "ready": process_age()}
        self._model.name_metrics(info, phases)
        self._replica.bind(self._model, self._text.preparer(info))
        for line in info.lines:
            log.info("%s", line)
        if self._model.preparer is not None:
            log.info("%s", self._model.preparer.formats)
        log.info(
            "%s", ready_line(info, phases, url_of(sock, is_tls=self._http.config.ssl is not None))
        )

    async def _start_grpc(self) -> None:
        """Beside HTTP, if that is wanted. Raises HeadraceError."""
        port = self._config.server.grpc_port
        if port is None:
            return
        try:
            # On a thread: it takes a quarter of a second, and probes are answered meanwhile.
            await asyncio.to_thread(importlib.import_module, "headrace.server.rpc.service")
        except ImportError as error:
            raise ConfigError(f"--grpc-port needs what cannot be imported: {error}.") from error
        from headrace.server.rpc.service import RpcServer

        self._rpc = RpcServer(self._replica, build_inner(self._replica), port)
        await self._rpc.start()
        log.info("gRPC is served at %s", self._rpc.address)

    def _fail_start(self, error: HeadraceError) -> None:
        """End the server with this error."""
        if isinstance(error, EngineStartError):
            log.debug("%s", error.failed.details)
        self._error = error
        self._http.should_exit = True

    # -- end --------------------------------------------------------------------------------------

    def _handle_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # embedded: whoever embeds us calls `stop`
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)

    def stop(self) -> None:
        """Once: drain, then end. Twice: end now."""
        self._num_signals += 1
        if self._num_signals == 1:
            self._drain = asyncio.create_task(self._drain_and_exit(), name="drain")
        else:
            log.warning("A second signal: ending now")
            self._replica.end_open()
            self._http.force_exit = True
            self._http.should_exit = True

    async def _drain_and_exit(self) -> None:
        await self._replica.drain(self._config.server.drain_timeout)
        if self._rpc is not None:
            await self._rpc.stop(FLUSH_SECONDS)
        self._http.should_exit = True


def ready_line(info: ModelInfo, phases: dict[str, float], url: str) -> str:
    """One line: where, how fast, and what."""
    parts = ", ".join(
        f"{name} {seconds:.2f}" for name, seconds in phases.items() if name != "ready"
    )
    return (
        f"headrace {__version__} is ready at {url} after {phases['ready']:.2f} s ({parts}): "
        f"{info.names[0]} ({info.family}), context {info.max_context}, "
        f"KV {info.num_blocks} blocks of {info.block_size} tokens ({info.kv_bytes / 2**20:.0f} MiB), "
        f"{info.threads} threads, {info.isa}"
    )


def process_age() -> float:
    """Seconds since this process was executed, to 10 ms (Linux); 0 where that is not known."""
    try:
        # Field 22 of stat: start in clock ticks since boot; the name in field 2 may hold spaces.
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(0.0, uptime - started / 100)


def _uvicorn_config(replica: Replica) -> Config:
    config = replica.config
    bounds = ConnectionBounds(
        max_connections=config.max_connections,
        read_timeout=config.read_timeout,
        stall_timeout=config.stall_timeout,
        on_reject=replica.note_rejection,
        max_header_bytes=config.max_header_bytes,
        max_headers=config.max_headers,
    )
    return http_config(
        build_app(replica),
        bounds,
        config.security,
        ws=socket_protocol,
        ws_max_size=config.max_body_bytes,
        ws_per_message_deflate=False,
        ws_ping_interval=PING_PERIOD,
        ws_ping_timeout=config.stall_timeout,
    )
