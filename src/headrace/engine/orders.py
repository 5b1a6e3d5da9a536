"""What an engine was told to be, and what it said that it is."""

import asyncio
from collections.abc import Callable

from headrace.core.errors import UnavailableError
from headrace.core.stats import ReplicaState
from headrace.engine.messages import Drain, Order, Park, Resume, ToEngine, Unload

#: What each order leads to.
_AIMS = {
    Drain: ReplicaState.DRAINING,
    Park: ReplicaState.PARKED,
    Resume: ReplicaState.READY,
    Unload: ReplicaState.EMPTY,
}


class Orders:
    """Of one engine. An engine that is restarted is told again what its predecessor had to be."""

    def __init__(self, send: Callable[[ToEngine], None]) -> None:
        self._send = send
        self._standing: Drain | Park | None = None
        self._waiting: list[tuple[ReplicaState, asyncio.Future[None]]] = []
        self.said = ReplicaState.LOADING
        """What the engine last said that it is."""

    @property
    def is_leaving(self) -> bool:
        """It was told to drain or park, and has not said that it did."""
        return self._standing is not None and self.said is ReplicaState.READY

    def loaded(self) -> None:
        """The engine has a model and takes requests, unless it was told otherwise."""
        self.said = ReplicaState.READY
        if self._standing is not None:
            self._send(self._standing)

    def note(self, state: ReplicaState) -> None:
        """The engine said what it is."""
        self.said = state
        for aim, future in self._waiting:
            if aim is state and not future.done():
                future.set_result(None)

    def tell(self, order: Order, *, is_there: bool) -> None:
        """Give an order; one that `is_there` not yet is told as soon as it is."""
        if isinstance(order, Drain | Park):
            self._standing = order
        else:
            self._standing = None
        if is_there:
            self._send(order)

    async def reach(self, order: Drain | Park | Resume | Unload) -> None:
        """Give an order to an engine that is there, and wait until it was obeyed.

        Raises UnavailableError when the engine ends before.
        """
        aim = _AIMS[type(order)]
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = aim, future
        self._waiting.append(entry)
        try:
            self.tell(order, is_there=True)
            await future
        finally:
            self._waiting.remove(entry)

    def forget(self) -> None:
        """Another model takes the place of the one that the orders were for."""
        self._standing = None

    def ended(self, reason: str) -> None:
        """The process is gone: nobody obeys any more."""
        self.said = ReplicaState.LOADING
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(UnavailableError(reason))
