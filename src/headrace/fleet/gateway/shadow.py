"""Copies of requests to another model. Their answers are thrown away; they begin only where nobody waits for the place, and
cost nobody anything: not the tenant, not the share of retries, not the trace.
"""

import asyncio
import logging

from msgspec import structs

from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError
from headrace.fleet.gateway.answer import Answer
from headrace.fleet.gateway.call import Call
from headrace.fleet.gateway.dispatch import Dispatcher
from headrace.fleet.gateway.exchange import RefusedError
from headrace.fleet.gateway.flow.admission import Admission
from headrace.fleet.gateway.router import Wanted
from headrace.observe import catalogue
from headrace.observe.metrics import Metrics
from headrace.web.asgi import Message

#: Copies that run at once; more are left out.
MAX_RUNNING = 64
#: Bytes of their requests together; more are left out.
MAX_BYTES = 64 * 1024 * 1024

log = logging.getLogger("headrace.fleet")


class Shadows:
    """Runs copies beside the requests themselves."""

    def __init__(
        self, dispatcher: Dispatcher, admission: Admission, metrics: Metrics, clock: Clock
    ) -> None:
        self._dispatcher = dispatcher
        self._admission = admission
        self._metrics = metrics
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_bytes = 0

    def copy(self, call: Call, wanted: Wanted) -> None:
        """Send a copy, if a replica has nothing better to do; nobody waits for it.

        None of one that goes on from a stored response: no other model has that.
        """
        if call.previous_response or not self._has_room(call, wanted):
            self._metrics.add(catalogue.GATEWAY_SHADOWS, ("left_out",))
            return
        # The trace is that of the request itself, and may be told before this has ended.
        copied = structs.replace(call, trace=None)
        task = asyncio.create_task(self._run(copied, wanted), name="shadow")
        self._tasks.add(task)
        self._num_bytes += len(call.raw)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._num_bytes -= len(call.raw)
            self._admission.wake()  # its place is free

        task.add_done_callback(ended)

    def _has_room(self, call: Call, wanted: Wanted) -> bool:
        is_full = len(self._tasks) >= MAX_RUNNING or self._num_bytes + len(call.raw) > MAX_BYTES
        if is_full or self._admission.num_waiting(wanted.lane):
            return False
        return bool(self._dispatcher.router.free_places(wanted))

    async def close(self) -> None:
        """End what runs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, call: Call, wanted: Wanted) -> None:
        outcome = "failed"
        try:
            answer = Answer(_swallow, self._clock)
            await self._dispatcher.copy(call, wanted, answer).run(lambda: None)
            outcome = "answered"
        except (HeadraceError, RefusedError) as error:
            log.debug("A copy failed: %s", error)
        finally:
            self._metrics.add(catalogue.GATEWAY_SHADOWS, (outcome,))


async def _swallow(_message: Message) -> None:
    pass
