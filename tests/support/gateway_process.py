"""A real `headrace gateway` process, to be signalled and killed."""

import subprocess
import sys
import threading
from pathlib import Path

import psutil
from tests.support.patience import PATIENCE


class GatewayProcess:
    """Serves until the block ends. Its log is kept in `lines`."""

    def __init__(self, file: Path, *, prelude: str = "") -> None:
        """`prelude` is Python that runs before anything of headrace is imported."""
        code = f"{prelude}\nimport sys\nfrom headrace.cli.main import main\nsys.exit(main(['gateway', {str(file)!r}]))"
        self.lines: list[str] = []
        self.url = ""
        self._announced = threading.Event()
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_ready(self) -> "GatewayProcess":
        """Until it says where it is."""
        assert self._announced.wait(PATIENCE), "\n".join(self.lines)
        assert self.url, "\n".join(self.lines)
        return self

    @property
    def num_upstream(self) -> int:
        """Connections that it holds to others."""
        own = int(self.url.rpartition(":")[2])
        found = psutil.Process(self.process.pid).net_connections("tcp")
        return sum(c.status == psutil.CONN_ESTABLISHED and c.laddr.port != own for c in found)

    @property
    def num_clients(self) -> int:
        """Connections that others hold to it."""
        own = int(self.url.rpartition(":")[2])
        found = psutil.Process(self.process.pid).net_connections("tcp")
        return sum(c.status == psutil.CONN_ESTABLISHED and c.laddr.port == own for c in found)

    def wait(self, seconds: float = PATIENCE) -> int:
        """Its exit code."""
        code = self.process.wait(seconds)
        self._reader.join(PATIENCE)
        return code

    def __enter__(self) -> "GatewayProcess":
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
            if " gateway at " in line and not self.url:
                self.url = line.split(" gateway at ")[1].split(",")[0].split()[0]
                self._announced.set()
        self._announced.set()
