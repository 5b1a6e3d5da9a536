"""The time by which a request that is made for another one must have ended, and what is said if it has not."""

import asyncio
from collections.abc import Awaitable
from typing import NamedTuple, TypeVar

from headrace.core.errors import GatewayTimeoutError

T = TypeVar("T")


class Limit(NamedTuple):
    """Of two the earlier one counts: they compare by time."""

    at: float
    """`Clock.monotonic`."""
    text: str
    """A sentence for the client."""


def earlier(one: Limit | None, other: Limit | None) -> Limit | None:
    """The one that counts; None where there is none."""
    return min(filter(None, (one, other)), default=None)


async def within(limit: Limit | None, work: Awaitable[T], now: float) -> T:
    """What it gives. Raises GatewayTimeoutError when its time is over, and ends it."""
    if limit is None:
        return await work
    try:
        async with asyncio.timeout(max(0.0, limit.at - now)):
            return await work
    except TimeoutError:
        raise GatewayTimeoutError(limit.text) from None
