"""A turn: the right to send one request to a replica."""

from types import TracebackType
from typing import Protocol, Self

from headrace.fleet.gateway.flow.values import Ticket


class SlotOwner(Protocol):
    """Who is told what becomes of a turn."""

    def placed(self, slot: "Slot") -> None:
        """Its request counts at a replica from now on."""
        ...

    def closed(self, slot: "Slot") -> None:
        """Its request has ended."""
        ...


class Slot:
    """Held while a request runs, whatever becomes of it. Close it exactly where the request ends: `async with` or
    `with`, or `close()`; the second time does nothing.
    """

    __slots__ = (
        "_owner",
        "arrived",
        "charged",
        "cold_seconds",
        "is_open",
        "is_placed",
        "itl",
        "output_tokens",
        "prompt_tokens",
        "replica_id",
        "ticket",
        "ttft",
        "waited",
    )

    def __init__(
        self,
        owner: SlotOwner,
        ticket: Ticket,
        waited: float,
        *,
        arrived: float = 0.0,
        charged: float = 0.0,
        cold_seconds: float = 0.0,
    ) -> None:
        self._owner = owner
        self.ticket = ticket
        self.waited = waited
        """Seconds in the queue."""
        self.arrived = arrived
        """`Clock.monotonic` when it came to the queue."""
        self.charged = charged
        """Weighted tokens that its tenant was charged in advance."""
        self.cold_seconds = cold_seconds
        """Those of them in which the model had no ready replica."""
        self.is_open = True
        self.is_placed = False
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.replica_id = ""
        """Where it was answered; empty: nowhere."""
        self.ttft: float | None = None
        """Seconds from its arrival in the queue to its first byte, of a stream."""
        self.itl: float | None = None
        """Seconds that 95 of 100 gaps between its tokens did not exceed, of a stream."""

    def placed(self) -> None:
        """The request counts at a replica now: call it right after its load was taken there, before any wait.

        Until then the free place that this turn was given for would be given to nobody else.
        """
        if self.is_open and not self.is_placed:
            self.is_placed = True
            self._owner.placed(self)

    def used(self, *, prompt_tokens: int, output_tokens: int) -> None:
        """What it came to, as far as is known; the tenant's share is corrected by it at the end.

        Cached prompt tokens are not prefilled: leave them out. Without a call the estimate stands, for a request that
        was placed; one that never was costs its tenant nothing.
        """
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens

    def answered(self, replica_id: str, ttft: float | None, itl: float | None = None) -> None:
        """By whom, how soon, and with which gaps, for those who watch."""
        self.replica_id = replica_id
        self.ttft = ttft
        self.itl = itl

    def close(self) -> None:
        """It has ended. Does nothing the second time."""
        if self.is_open:
            self.is_open = False
            self._owner.closed(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
