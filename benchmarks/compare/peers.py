"""The servers that are compared: how each is installed, started and measured on the same work.

HTTP servers are loaded by `headrace bench` from a process of its own. OpenVINO GenAI has no server; its
continuous batching runs the same closed loop in its own process, without the cost of HTTP.
"""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
HEADRACE = Path(sys.executable).with_name("headrace")


@dataclass(frozen=True)
class Work:
    """What every peer is given."""

    concurrency: tuple[int, ...]
    input_words: int
    output_tokens: int
    requests_per_client: int
    threads: int
    seed: int


@dataclass
class Figures:
    """One peer in one round. Seconds and tokens per second."""

    ready_seconds: float = 0.0
    output_tokens_per_second: dict[int, float] = field(default_factory=dict)
    ttft_p50: dict[int, float] = field(default_factory=dict)
    ttft_p95: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Peer:
    """One program with one model file."""

    name: str
    model: Path
    kind: str
    """headrace, llama.cpp or openvino."""
    requirement: str = ""
    """What pip installs into the peer's own environment."""

    @property
    def environment(self) -> Path:
        return ROOT / "build" / "peers" / self.kind.replace(".", "")

    @property
    def python(self) -> Path:
        return self.environment / "bin" / "python"

    def install(self) -> None:
        """Its own virtual environment, once."""
        if not self.requirement or (self.environment / ".installed").exists():
            return
        subprocess.run([sys.executable, "-m", "venv", str(self.environment)], check=True)
        subprocess.run(
            [str(self.python), "-m", "pip", "install", "-q", self.requirement], check=True
        )
        (self.environment / ".installed").touch()

    def version(self) -> str:
        """As the program's own package says."""
        if self.kind == "headrace":
            output = subprocess.run([str(HEADRACE), "--version"], capture_output=True, text=True)
            return output.stdout.strip()
        package = self.requirement.split("==")[0]
        code = f"from importlib.metadata import version; print(version({package!r}))"
        output = subprocess.run([str(self.python), "-c", code], capture_output=True, text=True)
        return f"{package} {output.stdout.strip()}"

    def measure(self, work: Work) -> Figures:
        """Run the whole work once."""
        if self.kind == "openvino":
            return _measure_openvino(self, work)
        figures = Figures()
        # llama.cpp divides its context among slots, so it is started anew for each number of clients.
        counts = (
            [(n,) for n in work.concurrency] if self.kind == "llama.cpp" else [work.concurrency]
        )
        for some in counts:
            with _server(self, work, max(some)) as (url, seconds):
                figures.ready_seconds = seconds
                _load(url, work, some, figures)
        return figures


def _command(peer: Peer, work: Work, port: int, clients: int) -> list[str]:
    if peer.kind == "llama.cpp":
        context = clients * (2 * work.input_words + work.output_tokens + 64)
        options = ["--port", port, "--parallel", clients, "--context", context]
        options += ["--threads", work.threads]
        script = HERE / "llama_server.py"
        return [str(peer.python), str(script), str(peer.model), *map(str, options)]
    options = ["--port", port, "--threads", work.threads, "--log-level", "error"]
    return [str(HEADRACE), "serve", str(peer.model), *map(str, options)]


@contextmanager
def _server(peer: Peer, work: Work, clients: int) -> Iterator[tuple[str, float]]:
    """(base URL, seconds from exec to ready) of a server that lives as long as the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = "/health" if peer.kind == "llama.cpp" else "/readyz"
    began = time.perf_counter()
    with subprocess.Popen(
        _command(peer, work, port, clients),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            while not _answers(f"http://127.0.0.1:{port}{path}"):
                if process.poll() is not None or time.perf_counter() - began > 300:
                    raise RuntimeError(f"{peer.name} did not start")
                time.sleep(0.01)
            yield f"http://127.0.0.1:{port}", time.perf_counter() - began
        finally:
            process.send_signal(signal.SIGKILL if peer.kind == "llama.cpp" else signal.SIGTERM)
            process.wait(30)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def _load(url: str, work: Work, concurrency: tuple[int, ...], figures: Figures) -> None:
    for clients in concurrency:
        command = [str(HEADRACE), "bench", "--url", url, "--json", "-"]
        command += ["--concurrency", str(clients), "--seed", str(work.seed + clients)]
        command += ["--num-requests", str(max(4, work.requests_per_client * clients))]
        command += ["--input-words", str(work.input_words)]
        command += ["--output-tokens", str(work.output_tokens)]
        output = subprocess.run(command, capture_output=True, text=True, check=True)
        run = json.loads(output.stdout)["runs"][0]
        if run["errors"]:
            raise RuntimeError(f"requests failed: {run['errors']} {run['error_examples']}")
        figures.output_tokens_per_second[clients] = run["output_tokens_per_second"]
        figures.ttft_p50[clients] = run["ttft"]["p50"]
        figures.ttft_p95[clients] = run["ttft"]["p95"]


def _measure_openvino(peer: Peer, work: Work) -> Figures:
    command = [str(peer.python), str(HERE / "openvino_loop.py"), str(peer.model)]
    command += ["--concurrency", ",".join(map(str, work.concurrency))]
    command += ["--input-words", str(work.input_words)]
    command += ["--output-tokens", str(work.output_tokens)]
    command += ["--requests-per-client", str(work.requests_per_client)]
    command += ["--threads", str(work.threads), "--seed", str(work.seed)]
    output = subprocess.run(command, capture_output=True, text=True, check=True)
    first, *rows = [json.loads(line) for line in output.stdout.splitlines() if line[:1] == "{"]
    figures = Figures(ready_seconds=first["ready_seconds"])
    for row in rows:
        figures.output_tokens_per_second[row["concurrency"]] = row["output_tokens_per_second"]
        figures.ttft_p50[row["concurrency"]] = row["ttft_p50"]
        figures.ttft_p95[row["concurrency"]] = row["ttft_p95"]
    return figures
