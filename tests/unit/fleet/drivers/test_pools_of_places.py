"""What a pool may want of the place where it is."""

import pytest

from headrace.config.fleet.pools import DriverKind, PoolConfig
from headrace.core.errors import ConfigError
from headrace.fleet.drivers.build import check_pools


def pool(driver: DriverKind, warm: int) -> PoolConfig:
    return PoolConfig(name="chat", model="m", driver=driver, warm_replicas=warm)


@pytest.mark.parametrize("driver", [DriverKind.LOCAL, DriverKind.RAY])
def test_processes_and_ray_have_warm_replicas(driver: DriverKind) -> None:
    check_pools([pool(driver, 2)])


def test_kubernetes_has_none_and_says_so() -> None:
    check_pools([pool(DriverKind.KUBERNETES, 0)])
    with pytest.raises(ConfigError, match="The pool chat cannot have warm_replicas"):
        check_pools([pool(DriverKind.KUBERNETES, 0), pool(DriverKind.KUBERNETES, 1)])
