"""All drivers as one place. What one of them cannot tell is not known, and nothing is concluded from it."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from headrace.config.fleet.pools import DriverKind, PoolConfig
from headrace.core.errors import DriverError, NotFoundError
from headrace.fleet.drivers.dressing import dressed
from headrace.fleet.drivers.protocol import Driver, Instance

T = TypeVar("T")
#: Seconds for a driver's call, beyond what it bounds itself.
PATIENCE = 60.0


class Listing(NamedTuple):
    """What there is."""

    instances: tuple[Instance, ...]
    unseen: frozenset[str]
    """Pools whose driver could not be asked."""
    faults: Mapping[DriverKind, str]


class Places:
    """Drivers by kind. Every error of theirs is a DriverError."""

    def __init__(self, drivers: Mapping[DriverKind, Driver]) -> None:
        self._drivers = dict(drivers)
        self._homes: dict[str, Driver] = {}
        """Which driver an instance is of."""

    async def list(self, pools: Sequence[PoolConfig]) -> Listing:
        """All of them at once."""
        kinds = list(self._drivers)
        answers = await asyncio.gather(*(self._list(self._drivers[kind]) for kind in kinds))
        instances: list[Instance] = []
        faults: dict[DriverKind, str] = {}
        for kind, found in zip(kinds, answers, strict=True):
            if isinstance(found, DriverError):
                faults[kind] = str(found)
                continue
            instances += dressed(found, pools)
            self._homes.update({instance.id: self._drivers[kind] for instance in found})
        if not faults:
            known = {instance.id for instance in instances}
            self._homes = {i: driver for i, driver in self._homes.items() if i in known}
        unseen = {pool.name for pool in pools if pool.driver in faults or pool.driver not in kinds}
        return Listing(tuple(instances), frozenset(unseen), faults)

    async def start(self, pool: PoolConfig, *, prestarted: bool) -> Instance:
        """Raises DriverError."""
        driver = self._drivers.get(pool.driver)
        if driver is None:
            raise DriverError(
                f"There is no driver for {pool.driver}; it takes effect at the next start."
            )
        instance = await _bounded(driver.start(pool, prestarted=prestarted))
        self._homes[instance.id] = driver
        return instance

    async def stop(self, instance_id: str, *, grace: float) -> None:
        """Raises DriverError."""
        if (driver := self._homes.get(instance_id)) is not None:
            await _bounded(driver.stop(instance_id, grace=grace))

    async def describe(self, instance_id: str) -> Mapping[str, str]:
        """Raises DriverError, or NotFoundError for an id that no list has had."""
        driver = self._homes.get(instance_id)
        found = None if driver is None else await _bounded(driver.describe(instance_id))
        if found is None:
            raise NotFoundError(f"There is no instance '{instance_id[:200]}'.")
        return found

    async def close(self) -> None:
        """Replicas run on."""
        await asyncio.gather(
            *(driver.close() for driver in self._drivers.values()), return_exceptions=True
        )

    async def _list(self, driver: Driver) -> Sequence[Instance] | DriverError:
        try:
            return await _bounded(driver.list())
        except DriverError as error:
            return error


async def _bounded(call: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(PATIENCE):
            return await call
    except TimeoutError:
        raise DriverError(f"The driver has not answered for {PATIENCE:.0f} s.") from None
    except (DriverError, asyncio.CancelledError):
        raise
    except Exception as error:
        raise DriverError(f"The driver failed: {type(error).__name__}: {error}") from error
