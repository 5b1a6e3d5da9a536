"""Orders to load and unload adapters while the engine runs: files are read, and packed, on a thread beside the steps."""

import logging
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from headrace.core.errors import BadRequestError, HeadraceError, InternalError, OverloadedError
from headrace.engine.adapters import AdapterShelf
from headrace.engine.messages import AdapterAnswer, AdapterOrder
from headrace.modeling.adapters.peft import LoraAdapter

#: Adapters that may wait to be read.
MAX_WAITING = 16

log = logging.getLogger("headrace.engine")


class _Job(NamedTuple):
    """An order, and what a thread does for it."""

    order: AdapterOrder
    work: Future[Any]
    """Reads the adapter; or puts what was read into its place."""
    adapter: LoraAdapter | None = None
    """What was read."""


class AdapterJobs:
    """The engine's thread calls; what is in its place is named in `take`, between two steps."""

    def __init__(self, shelf: AdapterShelf | None) -> None:
        """Without a shelf every order is refused."""
        self._shelf = shelf
        self._threads: ThreadPoolExecutor | None = None
        self._reading: deque[_Job] = deque()
        self._answers: list[AdapterAnswer] = []

    @property
    def is_reading(self) -> bool:
        """`take` will have an answer soon."""
        return bool(self._reading)

    def order(self, order: AdapterOrder) -> None:
        """Begin; the answer is in `take`, now or later."""
        try:
            if self._shelf is None:
                raise BadRequestError("This engine has no place for adapters: see --lora-root.")
            if order.path is None:
                self._shelf.unload(order.name)
                self._succeed(order, self._shelf)
                return
            self._shelf.check_name(order.name, in_place=order.in_place)
            if len(self._reading) >= MAX_WAITING:
                raise OverloadedError(f"{MAX_WAITING} adapters wait to be read already.")
            if self._threads is None:
                self._threads = ThreadPoolExecutor(1, thread_name_prefix="adapters")
            self._reading.append(_Job(order, self._threads.submit(self._shelf.read, order.path)))
        except HeadraceError as error:
            self._fail(order, error)

    def take(self) -> list[AdapterAnswer]:
        """Answers since the last call, in the order of the orders as far as files are concerned."""
        while self._reading and self._reading[0].work.done():
            self._go_on(self._reading.popleft())
        if self._shelf is not None:
            for name in self._shelf.take_unloaded():
                log.info("No request uses the adapter that was '%s' any more", name)
        answers, self._answers = self._answers, []
        return answers

    def close(self) -> None:
        """Forget what has not been answered."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        self._reading.clear()

    def _go_on(self, job: _Job) -> None:
        shelf, order = self._shelf, job.order
        assert shelf is not None
        try:
            if job.adapter is None:
                adapter: LoraAdapter = job.work.result()
                if self._is_filling(shelf, order, adapter):
                    return
                self._name(shelf, order, adapter)
                return
            try:
                job.work.result()
                self._name(shelf, order, job.adapter)
            finally:
                shelf.release(job.adapter)
        except HeadraceError as error:
            self._fail(order, error)
        except Exception as error:
            log.exception("The adapter '%s' could not be loaded", order.name)
            reason = f"The adapter could not be loaded: {type(error).__name__}."
            self._fail(order, InternalError(reason))

    def _is_filling(self, shelf: AdapterShelf, order: AdapterOrder, adapter: LoraAdapter) -> bool:
        """Have a thread put it into a free place; not where it has one, or takes that of another."""
        assert self._threads is not None
        index = shelf.take_place(adapter)
        if index is None:
            return False
        work = self._threads.submit(shelf.fill, index, adapter)
        self._reading.appendleft(_Job(order, work, adapter))
        return True

    def _name(self, shelf: AdapterShelf, order: AdapterOrder, adapter: LoraAdapter) -> None:
        assert order.path is not None
        shelf.put(order.name, order.path, adapter, in_place=order.in_place)
        self._succeed(order, shelf)

    def _succeed(self, order: AdapterOrder, shelf: AdapterShelf) -> None:
        self._answers.append(AdapterAnswer(job=order.job, adapters=shelf.loaded))

    def _fail(self, order: AdapterOrder, error: HeadraceError) -> None:
        self._answers.append(
            AdapterAnswer(
                job=order.job,
                error=str(error),
                error_kind=type(error).__name__,
                param=getattr(error, "param", None),
            )
        )
