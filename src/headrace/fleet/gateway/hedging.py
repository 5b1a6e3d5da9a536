"""Two tries side by side, where the first is slow to begin (Dean and Barroso, "The Tail at Scale", 2013)."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence

from headrace.fleet.upstream.failure import UpstreamError

Try = Coroutine[None, None, None]


async def hedged(
    first: Try, second: Callable[[], Try | None], begun: asyncio.Event, after: float
) -> None:
    """Run `first`; if nothing has begun after so many seconds, run what `second` gives beside it, if anything.

    Whoever begins an answer goes on; the other one ends by itself, since it may not write any more, and is cancelled.
    If one fails, the other goes on. Raises what the last of them failed of.
    """
    tasks = [asyncio.ensure_future(first)]
    begins = asyncio.ensure_future(begun.wait())
    try:
        done, _ = await asyncio.wait(
            [*tasks, begins], timeout=after, return_when=asyncio.FIRST_COMPLETED
        )
        if not done and (other := second()) is not None:
            tasks.append(asyncio.ensure_future(other))
        await _last(tasks)
    finally:
        for task in (*tasks, begins):
            task.cancel()
        await asyncio.gather(*tasks, begins, return_exceptions=True)


async def _last(tasks: Sequence[asyncio.Future[None]]) -> None:
    """Until one has succeeded, or failed otherwise than through its replica, or all have failed."""
    left = set(tasks)
    while True:
        done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            error = task.exception()
            if error is None:
                return
            if not left or not isinstance(error, UpstreamError):
                raise error
