"""What an actor is on a node: it starts one server, watches it, stops it, and takes it along when it dies."""

import os
import secrets
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from headrace.config import env
from headrace.config.secret import Secret
from headrace.fleet.drivers.launching import serve_environment
from headrace.fleet.drivers.local import output, process
from headrace.fleet.drivers.local.children import Children
from headrace.fleet.drivers.local.spawn import SOCKET_FD, gated
from headrace.web.port import bind, url_of

MAX_LOG_BYTES: Final = 8 * 1024 * 1024
_REASON_LINES: Final = 3
_SHOWN_LINES: Final = 20
#: Waits for the end of whoever started it, and ends the session of the server then.
_WATCHMAN: Final = ("/bin/sh", "-c", 'read -r _; kill -s KILL -- "-$1"', "sh")


class Report(Struct, frozen=True, kw_only=True):
    """What a supervisor says of its server."""

    url: str
    token: str
    spec: str
    """What it was made with."""
    is_alive: bool
    is_stopping: bool
    reason: str
    """How it ended."""
    facts: dict[str, str]
    """For an operator."""


class Supervisor:
    """Made on the node where the replica shall run. Calls may come from several threads."""

    def __init__(self, arguments: list[str], spec: str, host: str = "", node: str = "") -> None:
        """`arguments` of `headrace serve`; `spec` is kept for later controllers; `host` is the node's address and `node`
        its id, both Ray's by default. Raises OSError, ConfigError.
        """
        if not host:
            host, node = _where_we_are()
        self._token = Secret(secrets.token_urlsafe(32))
        self._directory = tempfile.TemporaryDirectory(prefix="headrace-")
        self._log = Path(self._directory.name) / "replica.log"
        self._node = node
        self._spec = spec
        self._children = Children()
        self._lock = threading.Lock()
        self._is_stopping = False
        with bind(host, 0, setting="a free port") as sock:
            self._url = url_of(sock)
            self._command = [sys.executable, "-P", "-m", "headrace", "serve", f"--host={host}"]
            self._command += [f"--listen-fd={SOCKET_FD}", *arguments]
            # Other machines reach it: it serves nobody who has no key.
            changes = {**serve_environment(self._token), "HEADRACE_API_KEYS": str(self._token)}
            with gated(self._command, env.child(changes), sock, self._log) as pid:
                self._pid = pid
                self._watchman, self._lifeline = _watch_over(pid)
        self._children.add(self._pid)
        self._children.add(self._watchman)

    def report(self) -> bytes:
        """A `Report`, as JSON."""
        with self._lock:
            self._children.reap()
            stat = process.stat_of(self._pid)
            is_alive = stat is not None and stat.is_alive
            if not is_alive:
                self._dismiss_watchman()
            output.trim(self._log, MAX_LOG_BYTES)
            report = Report(
                url=self._url,
                token=str(self._token),
                spec=self._spec,
                is_alive=is_alive,
                is_stopping=self._is_stopping,
                reason="" if is_alive else self._ending(),
                facts=self._facts(),
            )
        return msgspec.json.encode(report)

    def stop(self, grace: float) -> None:
        """Tell the server to end; after `grace` seconds it is killed. A later call can only shorten that."""
        with self._lock:
            is_first = not self._is_stopping
            self._is_stopping = True
            stat = process.stat_of(self._pid)
            if stat is None or not stat.is_alive:
                return
            if is_first and grace > 0:
                process.send(stat, signal.SIGTERM)
            timer = threading.Timer(max(0.0, grace), process.kill_session, [stat])
            timer.daemon = True
            timer.start()

    def _dismiss_watchman(self) -> None:
        """The server has ended, and its number may become another's: nobody may be ended by it."""
        if self._lifeline < 0:
            return
        watchman = process.stat_of(self._watchman)
        if watchman is not None:
            process.send(watchman, signal.SIGKILL)
        os.close(self._lifeline)
        self._lifeline = -1

    def _ending(self) -> str:
        lines = output.last_lines(self._log, _REASON_LINES)
        return ": ".join(filter(None, (self._children.ending_of(self._pid), " | ".join(lines))))

    def _facts(self) -> dict[str, str]:
        return {
            "node": self._node,
            "pid": str(self._pid),
            "address": self._url,
            "command": " ".join(self._command),
            "log": str(self._log),
            "last_lines": "\n".join(output.last_lines(self._log, _SHOWN_LINES)),
        }


def _watch_over(pid: int) -> tuple[int, int]:
    """Start the watchman; his pid, and the descriptor that keeps the server alive as long as it is open."""
    read, write = os.pipe2(os.O_CLOEXEC)
    try:
        watchman = os.posix_spawn(
            _WATCHMAN[0],
            [*_WATCHMAN, str(pid)],
            {},
            file_actions=[(os.POSIX_SPAWN_DUP2, read, 0)],
            setsid=True,  # whoever ends our own group does not end him
        )
    except BaseException:
        os.close(write)
        raise
    finally:
        os.close(read)
    return watchman, write


def _where_we_are() -> tuple[str, str]:
    """Address and id of the node."""
    import ray

    return ray.util.get_node_ip_address(), ray.get_runtime_context().get_node_id()
