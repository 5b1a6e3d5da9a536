"""Makes drivers: the one module that knows them all."""

from collections.abc import Iterable

from headrace.config.fleet.drivers import DriversConfig
from headrace.config.fleet.pools import DriverKind, PoolConfig
from headrace.config.fleet.root import FleetConfig
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.fleet.drivers.kubernetes.driver import KubernetesDriver
from headrace.fleet.drivers.launching import check_pool
from headrace.fleet.drivers.local.driver import LocalDriver
from headrace.fleet.drivers.places import state_directory
from headrace.fleet.drivers.protocol import Driver
from headrace.fleet.drivers.ray.driver import RayDriver


def make_driver(kind: DriverKind, fleet_name: str, config: DriversConfig, clock: Clock) -> Driver:
    """Raises ConfigError for a place that is not at hand, DriverError for one that cannot be used."""
    match kind:
        case DriverKind.LOCAL:
            return LocalDriver(
                state_directory(fleet_name, config) / "replicas", config.local, clock
            )
        case DriverKind.RAY:
            return RayDriver(fleet_name, config.ray, clock)
        case DriverKind.KUBERNETES:
            return KubernetesDriver(fleet_name, config.kubernetes)


def make_drivers(fleet_name: str, config: FleetConfig, clock: Clock) -> dict[DriverKind, Driver]:
    """One for each place that a pool names. Raises ConfigError, DriverError."""
    check_pools(config.pools)
    kinds = dict.fromkeys(pool.driver for pool in config.pools)
    return {kind: make_driver(kind, fleet_name, config.drivers, clock) for kind in kinds}


def check_pools(pools: Iterable[PoolConfig]) -> None:
    """Raises ConfigError for a pool whose flags a server would refuse, or that wants what its place cannot do."""
    for pool in pools:
        check_pool(pool)
        if pool.warm_replicas and pool.driver is DriverKind.KUBERNETES:
            raise ConfigError(
                f"The pool {pool.name} cannot have warm_replicas: the pods of a Deployment are all alike, so none of them can be "
                "started parked. Leave it out, and let min_replicas say how many serve at all times."
            )
