"""What bursts took, over a restart: by the clock on the wall and to the minute, so that a steady load is seldom news."""

from collections.abc import Mapping
from math import ceil
from typing import Annotated, Final

import msgspec
from msgspec import Meta

Bursts = tuple[tuple[float, int], ...]
"""As `ScalingState.bursts`: `Clock.monotonic` and replicas, by time, decreasing."""

_MINUTE: Final = 60
#: Seconds by which a clock may have been turned back.
_SLACK: Final = 120.0

_Replicas = Annotated[int, Meta(ge=1, lt=2**31)]
_Minute = Annotated[int, Meta(ge=0, lt=2**40)]
#: By the first pool of a group. A group has no more than `ScalingState.bursts` has.
_Kept = dict[str, Annotated[tuple[tuple[_Minute, _Replicas], ...], Meta(max_length=64)]]


def kept(bursts: Mapping[str, Bursts], *, now: float, wall: float) -> msgspec.Raw:
    """JSON: by pool, minutes since the epoch and replicas; of one minute, the most."""
    found: _Kept = {}
    for pool, past in bursts.items():
        most: dict[int, int] = {}
        for at, count in past:
            minute = ceil((wall - now + at) / _MINUTE)
            if count > most.get(minute, 0) and minute >= 0:
                most[minute] = count
        if most:
            found[pool] = tuple(most.items())
    return msgspec.Raw(msgspec.json.encode(found))


def recalled(data: msgspec.Raw, *, now: float, wall: float) -> dict[str, Bursts]:
    """By pool, as they were. Raises ValueError for what no controller writes."""
    found = msgspec.json.decode(data, type=_Kept)
    if any(
        minute * _MINUTE > wall + _MINUTE + _SLACK for past in found.values() for minute, _ in past
    ):
        raise ValueError("they are from the future")
    return {
        pool: tuple(
            (now - max(0.0, wall - minute * _MINUTE), count) for minute, count in sorted(past)
        )
        for pool, past in found.items()
    }
