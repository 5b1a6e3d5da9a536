"""What both tool loops do between two rounds: call what a model wants called, within the bounds of one request."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Final, TypeVar

from headrace.core.errors import GatewayTimeoutError
from headrace.fleet.gateway.limit import Limit
from headrace.fleet.gateway.tools.plan import ToolPlan
from headrace.fleet.gateway.tools.toolbox import Toolbox
from headrace.fleet.gateway.tools.values import NO_MORE, Result

T = TypeVar("T")

#: Seconds.
_GRACE: Final = 1.0


class Turn:
    """Calls of the gateway's own tools for one request."""

    def __init__(self, toolbox: Toolbox, plan: ToolPlan, request_id: str) -> None:
        self._toolbox = toolbox
        self._plan = plan
        self._request_id = request_id
        self._calls_left = toolbox.config.max_calls

    async def call(self, calls: Sequence[tuple[str, str]]) -> list[Result]:
        """Tools by name, with their arguments as JSON text: a result for each. Those beyond the bound are told so."""
        now, late = calls[: self._calls_left], calls[self._calls_left :]
        self._calls_left -= len(now)
        wanted = [(self._plan.own[name], arguments) for name, arguments in now]
        results = await self._toolbox.call_all(wanted, self._request_id)
        return [*results, *(NO_MORE for _ in late)]


async def in_time(work: Awaitable[T], seconds: float) -> T:
    """What a whole loop gives. Raises GatewayTimeoutError for one that takes longer, and ends it.

    Rounds have this limit themselves, and are put down as ended by it; it is a little longer here, so that theirs comes first.
    """
    try:
        async with asyncio.timeout(seconds + _GRACE):
            return await work
    except TimeoutError:
        raise GatewayTimeoutError(_late(seconds)) from None


def limit_of(seconds: float, now: float) -> Limit:
    """Of a loop that begins now."""
    return Limit(now + seconds, _late(seconds))


def _late(seconds: float) -> str:
    return f"The request and its calls of tools took more than {seconds:g} s."
