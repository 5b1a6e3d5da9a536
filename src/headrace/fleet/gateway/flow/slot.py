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
        "is_open",
        "is_placed",
        "output_tokens",
        "prompt_tokens",
        "ticket",
        "waited",
    )

    def __init__(self, owner: SlotOwner, ticket: Ticket, waited: float) -> None:
        self._owner = owner
        self.ticket = ticket
        self.waited = waited
        """Seconds in the queue."""
        self.is_open = True
        self.is_placed = False
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None

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
