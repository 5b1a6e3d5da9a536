"""A server seen from outside: its processes, their memory and time, its numbers."""

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import httpx
import psutil
from tests.support.patience import PATIENCE

T = TypeVar("T")


def until(condition: Callable[[], T], what: str = "it happens", seconds: float = PATIENCE) -> T:
    """The first true value of `condition`; fails when there is none in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"not after {seconds:g} s: {what}")


def tree(pid: int) -> list[psutil.Process]:
    """The process and all its descendants."""
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def resident(pid: int) -> int:
    """Bytes of RSS of the whole tree."""
    return sum(process.memory_info().rss for process in tree(pid))


def cpu_seconds(pid: int) -> float:
    """Processor time of the whole tree so far."""
    return sum(sum(process.cpu_times()[:2]) for process in tree(pid))


def load(url: str) -> dict[str, Any]:
    """What `/load` answers."""
    report: dict[str, Any] = httpx.get(f"{url}/load").json()
    return report


def settle(url: str) -> dict[str, Any]:
    """`/load` once nothing runs or waits any more."""
    until(lambda: load(url)["num_running"] == load(url)["num_waiting"] == 0, "the server is idle")
    return load(url)


def counters(url: str) -> dict[str, float]:
    """`/metrics`: each family's samples summed over labels, but for histograms' buckets."""
    totals: dict[str, float] = {}
    for line in httpx.get(f"{url}/metrics").text.splitlines():
        found = re.fullmatch(r"([a-z_:]+)(?:\{.*\})? ([0-9.e+-]+)", line)
        if found and not found[1].endswith("_bucket"):
            totals[found[1]] = totals.get(found[1], 0.0) + float(found[2])
    return totals


class ServeProcess:
    """One `headrace serve` on a free port, to be signalled and killed. Its stderr is kept in `lines`."""

    def __init__(self, *arguments: str) -> None:
        self.lines: list[str] = []
        self.url = ""
        self._announced = threading.Event()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headrace", "serve", *arguments],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The HTTP process."""
        return self.process.pid

    @property
    def engine(self) -> psutil.Process:
        """The engine process."""
        (child,) = psutil.Process(self.pid).children()
        return child

    def wait_ready(self) -> "ServeProcess":
        """Until it says where it is."""
        assert self._announced.wait(PATIENCE), "\n".join(self.lines)
        assert self.url, "\n".join(self.lines)
        return self

    def ready_status(self) -> int:
        """What `/readyz` answers now."""
        return httpx.get(f"{self.url}/readyz").status_code

    def wait(self, seconds: float = PATIENCE) -> int:
        """Its exit code."""
        code = self.process.wait(seconds)
        self._reader.join(PATIENCE)
        return code

    def __enter__(self) -> "ServeProcess":
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())
            if " is ready at " in line and not self.url:
                self.url = line.split(" is ready at ")[1].split()[0]
                self._announced.set()
        self._announced.set()


def is_gone(process: psutil.Process) -> bool:
    """It has ended, even if nobody has asked for its exit code."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Stream:
    """A completion that a thread reads: what came so far, and whether it has ended."""

    def __init__(self, url: str, **body: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.is_done = False
        """The end marker came."""
        self._thread = threading.Thread(target=self._run, args=(url, body), daemon=True)
        self._thread.start()

    def _run(self, url: str, body: dict[str, Any]) -> None:
        body = {"stream": True, "ignore_eos": True, **body}
        with (
            suppress(httpx.TransportError),
            httpx.stream("POST", f"{url}/v1/completions", json=body) as response,
        ):
            for line in response.iter_lines():
                if line == "data: [DONE]":
                    self.is_done = True
                elif line:
                    self.events.append(json.loads(line.removeprefix("data: ")))

    def begun(self) -> "Stream":
        """Once its first event is here."""
        until(lambda: self.events, "the stream begins")
        return self

    def join(self) -> "Stream":
        """Once the connection is closed."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self
