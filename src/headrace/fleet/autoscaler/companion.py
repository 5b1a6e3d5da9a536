"""The autoscaler beside its gateway: what `headrace up` has the gateway keep."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from headrace.config.fleet.root import FleetConfig
from headrace.core.clock import Clock
from headrace.fleet.autoscaler.admin import PoolsAdmin, status_of
from headrace.fleet.autoscaler.build import Surroundings, build_autoscaler
from headrace.fleet.autoscaler.controller import Controller
from headrace.fleet.autoscaler.views import decision_views, pool_views
from headrace.fleet.dashboard.feeds import MAX_ROWS, DecisionView, PoolView
from headrace.fleet.discovery import Discovery
from headrace.fleet.drivers.build import check_pools, make_drivers
from headrace.fleet.drivers.places import fleet_name, state_directory
from headrace.fleet.gateway.build import Parts
from headrace.fleet.gateway.companion import MakeCompanion
from headrace.web.endpoint import Endpoint
from headrace.web.keys import KeyRing


class Autoscaler:
    """Implements `gateway.companion.Companion`."""

    def __init__(self, controller: Controller, clock: Clock) -> None:
        self.controller = controller
        self._clock = clock

    @property
    def on_change(self) -> Callable[[], Awaitable[None]]:
        """Part of Companion."""
        return self.controller.on_instances

    @on_change.setter
    def on_change(self, heard: Callable[[], Awaitable[None]]) -> None:
        self.controller.on_instances = heard

    def sources(self) -> Mapping[str, Discovery]:
        """Part of Companion."""
        return {"the pools": self.controller.discovery}

    def endpoints(self, keys: KeyRing) -> Sequence[Endpoint]:
        """Part of Companion."""
        return PoolsAdmin(self.controller, keys, self._clock).endpoints()

    def pools(self) -> Sequence[PoolView]:
        """Part of Companion."""
        return pool_views(status_of(self.controller, self._clock))

    def decisions(self) -> Sequence[DecisionView]:
        """Part of Companion."""
        return decision_views(self.controller.entries.last(MAX_ROWS))

    async def start(self) -> None:
        """Part of Companion."""
        self.controller.start()

    def check(self, config: FleetConfig) -> None:
        """Part of Companion."""
        check_pools(config.pools)

    def apply(self, config: FleetConfig) -> None:
        """Part of Companion. A pool at another kind of place than any before gets its driver at the next start."""
        self.controller.apply(config.pools, config.autoscaler)

    async def close(self) -> None:
        """Part of Companion."""
        await self.controller.close()


def autoscaler_of(file: Path) -> MakeCompanion:
    """For the fleet of this file. What is made raises ConfigError, DriverError."""

    def make(parts: Parts, config: FleetConfig, clock: Clock) -> Autoscaler:
        name = fleet_name(config, file)
        drivers = make_drivers(name, config, clock)
        directory = state_directory(name, config.drivers)
        around = Surroundings(
            parts.registry, parts.admission, parts.metrics, clock, parts.prober.look_now
        )
        return Autoscaler(build_autoscaler(config, drivers, directory, around), clock)

    return make
