"""A real Redis (or Valkey) of one's own, on a socket in a directory."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.patience import PATIENCE

PROGRAMS = ("redis-server", "valkey-server")


def redis_program() -> str:
    """Skips the test where there is none."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        pytest.skip("redis-server (Debian: redis-server) is not installed")
    return found


@contextmanager
def redis_server(directory: Path) -> Iterator[str]:
    """Its address; it ends with the block. `directory` must have a short name: a socket's path is bounded."""
    socket = directory / "redis.sock"
    command = [redis_program(), "--port", "0", "--unixsocket", str(socket)]
    command += ["--save", "", "--appendonly", "no", "--dir", str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE
        while not socket.exists():
            assert process.poll() is None, "redis-server ended"
            assert time.monotonic() < deadline, "redis-server does not start"
            time.sleep(0.01)
        yield f"unix://{socket}"
    finally:
        process.kill()
        process.wait()
