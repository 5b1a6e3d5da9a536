"""llama.cpp's server in a process of its own, to compare with."""

import contextlib
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.patience import PATIENCE
from tests.support.ports import held_port

_RUN = """
import sys, time, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port = sys.argv[1], int(sys.argv[2])
params.hostnames = ["127.0.0.1"]
params.n_ctx, params.n_parallel, params.cpuparams.n_threads = 512, 1, 1
params.warmup, params.use_jinja = False, True
server = xllamacpp.Server(params)
while True:
    time.sleep(60)
"""


class LlamaServer:
    """Its HTTP endpoints."""

    def __init__(self, url: str) -> None:
        self.url = url

    def post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return json.load(response)

    def tokenize(self, text: str, *, add_special: bool = False) -> list[int]:
        """Token ids, special tokens in the text parsed."""
        body = {"content": text, "add_special": add_special, "parse_special": True}
        return list(self.post("/tokenize", body)["tokens"])

    def render(self, messages: list[dict[str, Any]]) -> str:
        """The prompt that its chat endpoint would use."""
        return str(self.post("/apply-template", {"messages": messages})["prompt"])


@contextlib.contextmanager
def llama_server(model: Path) -> Iterator[LlamaServer]:
    """Runs until the block ends."""
    with held_port() as port:
        yield from _serving(model, port)


def _serving(model: Path, port: int) -> Iterator[LlamaServer]:
    process = subprocess.Popen(
        [sys.executable, "-c", _RUN, str(model), str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        server = LlamaServer(f"http://127.0.0.1:{port}")
        _wait_until_ready(server, process)
        yield server
    finally:
        process.kill()
        process.wait()


def _wait_until_ready(server: LlamaServer, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"llama.cpp's server ended with {process.returncode}")
        try:
            with urllib.request.urlopen(f"{server.url}/health", timeout=PATIENCE):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise RuntimeError("llama.cpp's server did not become ready")
