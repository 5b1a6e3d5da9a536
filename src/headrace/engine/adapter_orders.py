"""What a client orders of adapters, and what its engine is given back after it was started again."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from headrace.core import errors
from headrace.core.errors import DeadlineExceededError, HeadraceError, OverloadedError
from headrace.core.model_info import AdapterInfo
from headrace.engine.messages import AdapterAnswer, AdapterOrder

#: Orders that may wait for their answers.
MAX_ORDERS = 16
#: Seconds that an order may take; files on another machine may not answer for ever.
ORDER_SECONDS = 300.0
#: Seconds that a restarted engine may take to read its adapters; it then serves without the rest.
RESTORE_SECONDS = 60.0

log = logging.getLogger("headrace.engine")


class AdapterOrders:
    """Of one engine and its successors. Everything happens on the event loop's thread."""

    def __init__(self, send: Callable[[AdapterOrder], None]) -> None:
        """`send` is best effort: an engine that is gone does not answer, and `fail` is called then."""
        self._send = send
        self._num_jobs = 0
        self._waiting: dict[int, asyncio.Future[AdapterAnswer]] = {}
        self._wanted: dict[str, str] | None = None
        """Path by name, once an order has changed what the engine loaded at its start."""
        self._restoring: dict[int, AdapterOrder] = {}
        self._when_done: Callable[[], None] = lambda: None
        self._deadline: asyncio.TimerHandle | None = None

    async def load(self, name: str, path: str, *, in_place: bool) -> None:
        """Returns when it is served. Raises HeadraceError."""
        await self._order(name, path, in_place=in_place)

    async def unload(self, name: str) -> None:
        """Returns when no new request gets it. Raises HeadraceError."""
        await self._order(name, None, in_place=False)

    def restore(self, loaded: Iterable[AdapterInfo], when_done: Callable[[], None]) -> None:
        """An engine has started with `loaded`: have it load what its predecessor had.

        `when_done` is called once that is done, at once where there is nothing to do.
        """
        self._stop_restoring()
        have = {adapter.name: adapter.path for adapter in loaded}
        wanted = have if self._wanted is None else self._wanted
        orders = [self._next(name) for name in have if name not in wanted]
        orders += [
            self._next(name, path, in_place=name in have)
            for name, path in wanted.items()
            if have.get(name) != path
        ]
        if not orders:
            when_done()
            return
        self._when_done = when_done
        self._restoring = {order.job: order for order in orders}
        self._deadline = asyncio.get_running_loop().call_later(RESTORE_SECONDS, self._give_up)
        for order in orders:
            self._send(order)

    def take(self, answer: AdapterAnswer) -> None:
        """An answer of the engine's."""
        if (order := self._restoring.pop(answer.job, None)) is not None:
            if answer.error is not None:
                log.error("The adapter '%s' is not served again: %s", order.name, answer.error)
            if not self._restoring:
                self._end_restoring()
            return
        if answer.adapters is not None and not self._restoring:
            self._wanted = {adapter.name: adapter.path for adapter in answer.adapters}
        waiting = self._waiting.pop(answer.job, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def fail(self, reason: str) -> None:
        """The engine is gone, or has dropped what it was about to do."""
        self._stop_restoring()
        waiting, self._waiting = self._waiting, {}
        for job, future in waiting.items():
            if not future.done():
                kind = "UnavailableError"
                future.set_result(AdapterAnswer(job=job, error=reason, error_kind=kind))

    def forget(self) -> None:
        """Another model is served from now on: what was ordered does not count for it."""
        self.fail("Another model is loaded.")
        self._wanted = None

    async def _order(self, name: str, path: str | None, *, in_place: bool) -> None:
        if len(self._waiting) >= MAX_ORDERS:
            raise OverloadedError(f"{MAX_ORDERS} orders about adapters wait for their end already.")
        order = self._next(name, path, in_place=in_place)
        future = self._waiting[order.job] = asyncio.get_running_loop().create_future()
        try:
            self._send(order)
            async with asyncio.timeout(ORDER_SECONDS):
                answer = await future
        except TimeoutError:
            raise DeadlineExceededError(
                f"The adapter '{name}' has not been read after {ORDER_SECONDS:.0f} s."
            ) from None
        finally:
            self._waiting.pop(order.job, None)
        if answer.error is not None:
            raise _error(answer, answer.error)

    def _next(self, name: str, path: str | None = None, *, in_place: bool = False) -> AdapterOrder:
        self._num_jobs += 1
        return AdapterOrder(job=self._num_jobs, name=name, path=path, in_place=in_place)

    def _give_up(self) -> None:
        names = ", ".join(order.name for order in self._restoring.values())
        log.error("Adapters are still not read, and are not waited for: %s", names)
        self._end_restoring()

    def _end_restoring(self) -> None:
        self._stop_restoring()
        self._when_done()

    def _stop_restoring(self) -> None:
        self._restoring = {}
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _error(answer: AdapterAnswer, message: str) -> HeadraceError:
    """The exception that an answer names."""
    if answer.error_kind == "BadRequestError":
        return errors.BadRequestError(message, param=answer.param)
    simple = (errors.NotFoundError, errors.OverloadedError, errors.UnavailableError)
    found = next((kind for kind in simple if kind.__name__ == answer.error_kind), None)
    return found(message) if found is not None else errors.InternalError(message)
