"""Makes drivers: the one module that knows them all."""

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from headrace.config import env
from headrace.config.fleet.drivers import DriversConfig
from headrace.config.fleet.pools import DriverKind, PoolConfig
from headrace.config.fleet.root import FleetConfig
from headrace.core.clock import Clock
from headrace.fleet.drivers.kubernetes.driver import KubernetesDriver
from headrace.fleet.drivers.launching import check_pool
from headrace.fleet.drivers.local.driver import LocalDriver
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
    """Raises ConfigError for a pool whose flags a server would refuse."""
    for pool in pools:
        check_pool(pool)


def fleet_name(config: FleetConfig, file: Path) -> str:
    """What the fleet is called: its own name, or one made of its file's path, so that no two fleets share replicas."""
    if config.name:
        return config.name
    path = file.resolve()
    stem = re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-")[:24].strip("-") or "fleet"
    return f"{stem}-{hashlib.sha256(bytes(path)).hexdigest()[:8]}"


def state_directory(fleet_name: str, config: DriversConfig) -> Path:
    """Where it is noted what runs of this fleet on this machine."""
    if config.local.directory is not None:
        return Path(config.local.directory).expanduser() / fleet_name
    return env.state_home() / "fleets" / fleet_name
