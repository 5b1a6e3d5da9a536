"""How much batches may run now: what the requests that somebody waits for leave over. Numbers only.

The engine runs them last and preempts them first. Beside that, some places always stay free for requests
that come; when these nevertheless wait, requests of batches are taken back and run again later.
"""

from typing import Final

from msgspec import Struct

#: Seconds after which a request that waits takes a batch's place even where places are free: it lacks memory.
PATIENCE: Final = 0.3


class Traffic(Struct, frozen=True):
    """What is going on."""

    max_running: int
    """Requests that can run at once."""
    num_waiting: int
    """Requests that somebody waits for, before their first token."""
    num_started: int
    """And after it."""
    num_batched: int
    """Requests of batches in flight."""
    waited: float
    """Seconds since somebody began to wait without a break."""


def num_to_start(traffic: Traffic, limit: int) -> int:
    """How many more requests of batches may begin."""
    if traffic.num_waiting:
        return 0
    reserve = traffic.max_running // 4
    free = traffic.max_running - reserve - traffic.num_started - traffic.num_batched
    return max(0, min(free, limit - traffic.num_batched))


def num_to_take_back(traffic: Traffic) -> int:
    """How many of those in flight must give way."""
    if not traffic.num_waiting:
        return 0
    busy = traffic.num_waiting + traffic.num_started + traffic.num_batched
    lacking = max(busy - traffic.max_running, 1 if traffic.waited >= PATIENCE else 0)
    return min(traffic.num_batched, lacking)
