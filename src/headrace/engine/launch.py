"""Starts an engine process by name, so that the server imports nothing of the engine's."""

import contextlib
import signal
import socket
import subprocess
import sys

from msgspec import Struct, structs

from headrace.config import env
from headrace.config.engine import EngineConfig
from headrace.core.clock import Clock
from headrace.engine.channel import frame
from headrace.engine.messages import DEFAULT_BUILD, Codec, Configure, KVEventsConfig


class LaunchSpec(Struct, frozen=True, kw_only=True):
    """Everything an engine process is started with. Sent over its channel, not in its arguments."""

    engine: EngineConfig | None = EngineConfig()
    """None: no model yet; one is loaded by message."""
    build: str = DEFAULT_BUILD
    """`module:function` of the composition root; tests name a double."""
    kv_events: KVEventsConfig | None = None
    log_level: str = "info"
    log_format: str = "text"
    environment: dict[str, str] = {}
    """Changes to this process's environment."""


class EngineProcess:
    """A running engine process and our end of its socket."""

    def __init__(
        self, process: subprocess.Popen[bytes], sock: socket.socket, spawned: float
    ) -> None:
        self._process = process
        self.socket = sock
        self.spawned = spawned

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def wait(self, timeout: float | None) -> int | None:
        """Exit status, or None when it still runs after `timeout` seconds. Blocks."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def dump_stacks(self) -> None:
        """Make the process write the stacks of all its threads to stderr."""
        self._signal(signal.SIGUSR1)

    def kill(self) -> None:
        """End it now."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)


def launch(spec: LaunchSpec, clock: Clock) -> EngineProcess:
    """Start the process and send its configuration.

    Call it from a thread that lives as long as the engine should: on Linux the kernel kills the child
    when the thread that started it ends.
    """
    spawned = clock.monotonic()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    # One BLAS thread: the kernels have their own pool, and idle BLAS threads only cost memory.
    changes = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"} | dict(spec.environment)
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "headrace.engine.process", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            env=env.child(changes),
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    fields = {name: getattr(spec, name) for name in structs.asdict(spec) if name != "environment"}
    ours.sendall(frame(Codec().encode(Configure(spawned=spawned, **fields))))
    return EngineProcess(process, ours, spawned)
