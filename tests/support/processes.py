"""A server seen from outside: its processes, their memory and time, its numbers."""

import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

import httpx
import psutil

T = TypeVar("T")


def until(condition: Callable[[], T], what: str, seconds: float = 30.0) -> T:
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
