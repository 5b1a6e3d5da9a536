"""Who is told what comes and goes, so that a fleet can grow and shrink with it."""

from typing import Protocol

from headrace.fleet.gateway.flow.slot import Slot
from headrace.fleet.gateway.flow.values import Ticket


class FlowWatcher(Protocol):
    """Told in plain calls in the middle of a request: must not raise, and must not wait."""

    def arrived(self, ticket: Ticket) -> None:
        """A request wants a turn."""
        ...

    def cold(self, lane: str) -> None:
        """A request waits for a model that has no ready replica."""
        ...

    def ended(self, slot: Slot) -> None:
        """A request that had its turn is over."""
        ...


class Nobody:
    """Hears nothing."""

    def arrived(self, ticket: Ticket) -> None:
        """Part of FlowWatcher."""

    def cold(self, lane: str) -> None:
        """Part of FlowWatcher."""

    def ended(self, slot: Slot) -> None:
        """Part of FlowWatcher."""
