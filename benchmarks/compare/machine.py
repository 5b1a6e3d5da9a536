"""What a comparison runs on, and that it runs alone."""

import fcntl
import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LOCK = Path(tempfile.gettempdir()) / "headrace-bench.lock"


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    info = Path("/proc/cpuinfo").read_text().split("model name\t: ")[1].split("\n")[0]
    return {"cpu": info, "cpus": len(os.sched_getaffinity(0)), "kernel": platform.release()}


@contextmanager
def machine_lock() -> Iterator[None]:
    """One comparison at a time on this machine."""
    with LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
