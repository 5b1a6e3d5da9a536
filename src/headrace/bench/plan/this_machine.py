"""What this machine's CPUs reach: bytes read and multiplications a second, measured in a moment with numpy."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import inf

import numpy as np

from headrace.core.clock import Clock, SystemClock
from headrace.kernels import topology

_BYTES = 64 * 2**20
_SIZE = 768
#: Long enough for a moment in which nobody else has the cores.
_SECONDS = 0.5


def free_memory() -> int:
    """Bytes, after the limits of a container."""
    return topology.available_memory()


def bandwidth(clock: Clock = SystemClock()) -> float:  # noqa: B008
    """Bytes a second that all CPUs read together."""
    count = len(os.sched_getaffinity(0))
    data = [np.ones(_BYTES // 4, np.float32) for _ in range(count)]
    with ThreadPoolExecutor(count) as pool:
        best = _best(lambda: list(pool.map(np.max, data)), clock)
    return count * _BYTES / best


def flops(clock: Clock = SystemClock()) -> float:  # noqa: B008
    """Operations a second of a float32 matrix product; integer kernels may do more."""
    left = np.ones((_SIZE, _SIZE), np.float32)
    return 2 * _SIZE**3 / _best(lambda: left @ left, clock)


def _best(work: Callable[[], object], clock: Clock) -> float:
    """Seconds of the fastest try: what others do on the machine only ever makes one slower."""
    now = clock.monotonic()
    end, best = now + _SECONDS, inf
    while now < end:
        began = now
        work()
        now = clock.monotonic()
        best = min(best, now - began)
    return max(1e-9, best)
