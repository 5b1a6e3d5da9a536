"""A real `headrace up`, to be signalled and killed, and the replicas that it leaves."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil
from tests.support.local_fleet import end_session
from tests.support.patience import PATIENCE
from tests.support.processes import until

KEY = "of-the-operator"


class UpProcess:
    """Serves until the block ends. What it writes is kept in `lines`."""

    def __init__(self, file: Path, *flags: str) -> None:
        self.lines: list[str] = []
        self.url = ""
        self._announced = threading.Event()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headrace", "up", str(file), *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_up(self) -> "UpProcess":
        """Until it says where it is."""
        assert self._announced.wait(PATIENCE), "\n".join(self.lines)
        assert self.url, "\n".join(self.lines)
        return self

    def wait_ready(self) -> "UpProcess":
        """Until it has a replica that serves."""
        self.wait_up()
        until(lambda: httpx.get(f"{self.url}/readyz").status_code == 200, "it is ready")
        return self

    def replicas(self) -> dict[str, str]:
        """Standing by id, as the admin API tells."""
        headers = {"authorization": f"Bearer {KEY}"}
        found = httpx.get(f"{self.url}/admin/replicas", headers=headers).json()["replicas"]
        return {replica["id"]: replica["standing"] for replica in found}

    def kill(self) -> None:
        """At once, as the kernel does when memory is short."""
        self.process.kill()
        self.wait()

    def wait(self, seconds: float = PATIENCE) -> int:
        """Its exit code."""
        code = self.process.wait(seconds)
        self._reader.join(PATIENCE)
        return code

    def __enter__(self) -> "UpProcess":
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if line.startswith("The fleet ") and " is at " in line and not self.url:
                self.url = line.split(" is at ")[1].split()[0]
                self._announced.set()
        self._announced.set()


def down(file: Path) -> subprocess.CompletedProcess[str]:
    """`headrace down`."""
    return subprocess.run(
        [sys.executable, "-m", "headrace", "down", str(file)],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip


def servers(model: Path) -> list[psutil.Process]:
    """Living `headrace serve` of this model, whoever started them."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess):
            is_server = f"--model={model}" in process.cmdline()
            if is_server and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@contextmanager
def no_servers_left(model: Path) -> Iterator[None]:
    """Afterwards none of this model runs, whatever the test did."""
    try:
        yield
    finally:
        for process in servers(model):
            end_session(process.pid)
