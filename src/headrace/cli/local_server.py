"""A `headrace serve` of our own, as a child process, for commands and tests that need one."""

import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO

from headrace.config import env
from headrace.core.errors import ConfigError, UnavailableError

_READY = re.compile(r" is ready at (http\S+)")
_STOP_SECONDS = 10.0
"""How long the child may take to end after SIGTERM."""


@dataclass
class LocalServer:
    """A running server: its address and the end of its log."""

    url: str
    pid: int
    log: deque[str] = field(repr=False)


@contextmanager
def local_server(
    arguments: Sequence[str],
    *,
    ready_timeout: float,
    environment: Mapping[str, str] | None = None,
    log_lines: int = 200,
) -> Iterator[LocalServer]:
    """Run `headrace serve ARGUMENTS` on a free port until the block ends.

    Raises ConfigError with the server's last line if it ends before it is ready, UnavailableError if
    it is not ready after `ready_timeout` seconds.
    """
    # -P as the engine process: a module in the working directory must not shadow one of ours.
    command = [sys.executable, "-P", "-m", "headrace", "serve", *arguments]
    command += ["--port", "0", "--log-level", "info", "--log-format", "text"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=env.child(environment or {}),
        start_new_session=True,  # Ctrl-C in our terminal stops an answer, not the server
    )
    assert process.stderr is not None
    watch = _Watch(process.stderr, log_lines)
    try:
        yield LocalServer(watch.wait_ready(ready_timeout), process.pid, watch.log)
    finally:
        _stop(process)
        watch.join()


class _Watch:
    """Reads the child's log in a thread, so that its pipe never fills; notices that it is ready."""

    def __init__(self, stream: IO[str], log_lines: int) -> None:
        self.log: deque[str] = deque(maxlen=log_lines)
        self._stream = stream
        self._url = ""
        self._changed = threading.Event()
        self._thread = threading.Thread(target=self._read, name="server log", daemon=True)
        self._thread.start()

    def wait_ready(self, timeout: float) -> str:
        if not self._changed.wait(timeout):
            raise UnavailableError(f"The server is not ready after {timeout:g} s. {self._last()}")
        if not self._url:
            raise ConfigError(f"The server did not start. {self._last()}")
        return self._url

    def join(self) -> None:
        self._thread.join()
        self._stream.close()

    def _last(self) -> str:
        return self.log[-1].removeprefix("headrace: error: ") if self.log else ""

    def _read(self) -> None:
        for line in self._stream:
            self.log.append(line.rstrip("\n"))
            found = _READY.search(line)
            if found and not self._url:
                self._url = found.group(1)
                self._changed.set()
        self._changed.set()


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
