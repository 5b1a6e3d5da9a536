"""What may run beside a gateway, in its process: an autoscaler, which finds it replicas."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from headrace.config.fleet.root import FleetConfig
from headrace.core.clock import Clock
from headrace.fleet.dashboard.feeds import DecisionView, PoolView
from headrace.fleet.discovery import Discovery
from headrace.fleet.gateway.build import Parts
from headrace.web.endpoint import Endpoint
from headrace.web.keys import KeyRing


class Companion(Protocol):
    """Lives as long as its gateway: made on its event loop, started before its first request, closed after its last."""

    on_change: Callable[[], Awaitable[None]]
    """The gateway's: to be awaited when there are other replicas than before, so that it does not wait for its next look."""

    def sources(self) -> Mapping[str, Discovery]:
        """Replicas that it has, by names that stay the same."""
        ...

    def endpoints(self, keys: KeyRing) -> Sequence[Endpoint]:
        """Of the admin API, behind these keys."""
        ...

    def pools(self) -> Sequence[PoolView]:
        """For the dashboard."""
        ...

    def decisions(self) -> Sequence[DecisionView]:
        """For the dashboard, newest first."""
        ...

    async def start(self) -> None:
        """Begin. Raises ConfigError for what the operator can mend."""
        ...

    def check(self, config: FleetConfig) -> None:
        """Raises ConfigError for a configuration that cannot be."""
        ...

    def apply(self, config: FleetConfig) -> None:
        """The configuration was read again, and has been checked."""
        ...

    async def close(self) -> None:
        """End; what it has started runs on."""
        ...


MakeCompanion = Callable[[Parts, FleetConfig, Clock], Companion]
