"""`headrace serve`, second part: the event loop's life, from ready to the last answer."""

import asyncio
import gc
import importlib
import logging
import signal
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from uvicorn.config import Config

from headrace import __version__
from headrace.config.root import ServeConfig
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError, HeadraceError, InternalError
from headrace.core.model_info import ModelInfo
from headrace.core.stats import ReplicaState
from headrace.engine.failure import EngineStartError
from headrace.observe.metrics import Metrics
from headrace.server.app import build_app, build_inner
from headrace.server.models import Models, ModelStart
from headrace.server.replica import Replica
from headrace.server.sockets import socket_protocol
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
    config: ServeConfig, starts: Sequence[ModelStart], sock: socket.socket, clock: Clock
) -> int:
    """Run the event loop until the server is told to end; the exit code."""
    import uvloop

    allow_open_files(config.server.max_connections + SPARE_FILES)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Serving(config, starts, clock).run(sock))


class Serving:
    """One server process: HTTP on one side, engines on the other."""

    def __init__(self, config: ServeConfig, starts: Sequence[ModelStart], clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._replica = Replica(config.server, clock, Metrics())
        self._models = Models(self._replica, config, starts, clock)
        self._http = HttpServer(_uvicorn_config(self._replica))
        self._num_signals = 0
        self._drain: asyncio.Task[None] | None = None
        self._error: HeadraceError | None = None
        self._rpc: RpcServer | None = None

    async def run(self, sock: socket.socket) -> int:
        """From the first connection to the last; the exit code."""
        self._handle_signals()
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

    async def _become_ready(self, sock: socket.socket) -> None:
        try:
            await asyncio.gather(self._models.open(), self._start_grpc())
        except HeadraceError as error:
            self._fail_start(error)
            return
        except Exception as error:
            # Nobody waits for this task: what is not told here would leave a server that never loads.
            log.exception("The server could not start")
            self._fail_start(InternalError(f"Starting failed: {type(error).__name__}: {error}."))
            return
        # What exists now lives as long as the process: keep the collector away from it.
        gc.collect()
        gc.freeze()
        gc.enable()
        seconds = process_age()
        self._models.note_start(seconds)
        for model in self._replica.models.values():
            for line in model.info.lines if model.info is not None else ():
                log.info("%s", line)
            if model.preparer is not None:
                log.info("%s", model.preparer.formats)
        url = url_of(sock, is_tls=self._http.config.ssl is not None)
        log.info(
            "headrace %s is ready at %s after %.2f s%s", __version__, url, seconds, self._what()
        )

    def _what(self) -> str:
        """The rest of the line that says that the server is ready: what it serves."""
        models = list(self._replica.models.values())
        if self._replica.shelf is not None:
            loaded = ", ".join(m.name for m in models if m.info is not None) or "none"
            return f": {len(models)} models, loaded are {loaded}; the others are when they are asked for"
        (model,) = models
        info = model.info
        if info is None:
            return ", without a model: it waits for POST /control/load"
        return ready_words(info, model.state)

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


def ready_words(info: ModelInfo, state: ReplicaState) -> str:
    """How fast, and what."""
    parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in info.phases.items())
    parked = ", parked" if state is ReplicaState.PARKED else ""
    return (
        f" ({parts}): "
        f"{info.names[0]} ({info.family}){parked}, context {info.max_context}, "
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
