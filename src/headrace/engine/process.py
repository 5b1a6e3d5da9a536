"""Entry point of the engine process: `python -m headrace.engine.process FD`.

Exit codes: 0 told to end or the server is gone, 1 failed, 2 the configuration cannot be served.
"""

import faulthandler
import gc
import importlib
import logging
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any, Protocol

from headrace.config.engine import EngineConfig
from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import ConfigError
from headrace.core.model_info import ModelInfo
from headrace.core.stats import ReplicaState
from headrace.engine.channel import BlockingChannel, ChannelError, FrameReader
from headrace.engine.lifecycle import EngineLike, Lifecycle, LoadFailedError
from headrace.engine.loop import EngineLoop, KVPublisher, StepsFailedError
from headrace.engine.messages import (
    Codec,
    Configure,
    Failed,
    KVEventsConfig,
    Progress,
    Ready,
    State,
)
from headrace.observe.logs import set_up_logging

log = logging.getLogger("headrace.engine")


class Built(Protocol):
    """What a composition root returns."""

    @property
    def engine(self) -> EngineLike: ...
    @property
    def info(self) -> ModelInfo: ...


def main() -> None:
    """Run one engine until its server is gone."""
    gc.disable()  # until what lives as long as the engine is there
    _die_with_parent()
    sock = socket.socket(fileno=int(sys.argv[1]))
    # A terminal or a supervisor signals the whole group; when to end is the server's business: it
    # drains first, then sends Stop or closes the socket.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    clock = SystemClock()
    codec = Codec()
    configure = _read_configure(sock, codec)
    if configure is None:
        sys.exit(0)
    sys.exit(_Process(configure, sock, codec, clock).run())


class _Process:
    """One life: load, announce, loop; load anew when the loop is told to."""

    def __init__(
        self, configure: Configure, sock: socket.socket, codec: Codec, clock: Clock
    ) -> None:
        self._configure = configure
        self._socket = sock
        self._channel = BlockingChannel(sock)
        self._codec = codec
        self._clock = clock
        self._phase = "start"

    def run(self) -> int:
        """Exit code. Raises SystemExit where loading failed or the server is gone."""
        self._socket.setblocking(True)  # nothing else is to be done until the loop runs
        self._report("import")
        try:
            # Logging is set up here, so that a wrong level is reported like any other mistake.
            set_up_logging(self._configure.log_level, self._configure.log_format, process="engine")
            publisher = _publisher(self._configure.kv_events, self._clock)
        except Exception as error:  # noqa: BLE001 - every failure to start is told to the parent
            return self._fail(error)
        life = Lifecycle(self._build)
        try:
            self._begin(life)
        except LoadFailedError as error:
            return error.exit_code
        self._socket.setblocking(False)
        loop = EngineLoop(life, self._channel, self._clock, publisher=publisher)
        try:
            loop.run()
        except StepsFailedError as error:
            log.critical("The engine gives up: %s", error)
            return 1
        finally:
            if publisher is not None:
                publisher.close()
            life.engine.close()
        return 0

    def _begin(self, life: Lifecycle) -> None:
        """Load the first model; without one, everything that a load will need."""
        if self._configure.engine is not None:
            life.load(self._configure.engine)
            return
        try:
            importlib.import_module(self._configure.build.partition(":")[0])
        except Exception as error:
            raise LoadFailedError(self._fail(error)) from error
        _settle()
        self._send(State(ReplicaState.EMPTY))

    def _build(self, config: EngineConfig) -> EngineLike:
        """For `Lifecycle`."""
        gc.disable()  # it would look through what is being made again and again
        try:
            built = _resolve(self._configure.build)(
                config,
                self._clock,
                self._report,
                record_kv_events=self._configure.kv_events is not None,
            )
        except Exception as error:  # noqa: BLE001 - every failure to load is told to the parent
            code = self._fail(error)
        else:
            _settle()
            self._send(Ready(built.info))
            return built.engine
        # Outside of the handler: the traceback would keep what was built so far.
        gc.collect()
        gc.enable()
        raise LoadFailedError(code)

    def _report(self, phase: str) -> None:
        self._phase = phase
        self._send(Progress(phase, self._clock.monotonic() - self._configure.spawned))

    def _fail(self, error: Exception) -> int:
        code = 2 if isinstance(error, ConfigError) else 1
        self._send(
            Failed(
                phase=self._phase,
                kind=type(error).__name__,
                message=str(error) or "no message",
                hint=_hint(error),
                details="".join(traceback.format_exception(error)),
                exit_code=code,
            )
        )
        return code

    def _send(self, message: Progress | Ready | Failed | State) -> None:
        try:
            self._channel.send(self._codec.encode(message))
        except ChannelError:
            sys.exit(0)  # the server is gone


def _settle() -> None:
    """What exists now lives as long as the engine: keep the collector away from it."""
    gc.collect()
    gc.freeze()
    gc.enable()


def _hint(error: Exception) -> str | None:
    if isinstance(error, MemoryError):
        return "There is not enough memory; choose a smaller model, --kv-memory or --max-context."
    if isinstance(error, ImportError):
        return "The installation is incomplete; `make install` or `pip install headrace` mends it."
    if isinstance(error, PermissionError):
        return "Check the permissions of the model's files and of the cache directory."
    return None


def _resolve(target: str) -> Callable[..., Built]:
    module, _, name = target.partition(":")
    function: Callable[..., Built] = getattr(importlib.import_module(module), name)
    return function


def _publisher(config: KVEventsConfig | None, clock: Clock) -> KVPublisher | None:
    if config is None:
        return None
    # By name: ZeroMQ costs 20 ms and most engines do not publish.
    module: Any = importlib.import_module("headrace.engine.kv_events")
    publisher: KVPublisher = module.ZmqPublisher(config, clock)
    return publisher


def _read_configure(sock: socket.socket, codec: Codec) -> Configure | None:
    """The first frame; None when the server is gone before it came."""
    reader = FrameReader()
    while True:
        data = sock.recv(65536)
        if not data:
            return None
        frames = reader.feed(data)
        if frames:
            # The parent sends nothing else before it has seen Ready.
            message = codec.to_engine(frames[0])
            return message if isinstance(message, Configure) else None


def _die_with_parent() -> None:
    """Ask the kernel to kill us with the thread that started us (Linux; elsewhere EOF must do)."""
    if sys.platform != "linux":
        return
    import ctypes

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    main()
