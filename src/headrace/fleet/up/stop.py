"""All replicas of a fleet are told to end, and waited for."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from headrace.core.clock import Clock
from headrace.core.errors import DriverError
from headrace.fleet.drivers.protocol import Driver, Instance

#: Beyond their grace: so long a place may take to say that they are gone.
_SPARE_SECONDS: Final = 15.0
_PERIOD: Final = 0.1


async def stop_all(
    drivers: Iterable[Driver], clock: Clock, *, grace: float, tell: Callable[[str], None]
) -> Sequence[Instance]:
    """Those that are still there when it gives up. Raises DriverError for a place that cannot be asked at first."""
    left: list[Instance] = []
    for driver in drivers:
        try:
            left += await _stop_those_of(driver, clock, grace, tell)
        finally:
            await driver.close()
    return left


async def _stop_those_of(
    driver: Driver, clock: Clock, grace: float, tell: Callable[[str], None]
) -> Sequence[Instance]:
    found = {instance.id: instance for instance in await driver.list()}
    if found:
        tell(f"Stopping {', '.join(sorted(found))} …")
    # One after the other: telling takes a moment, and they end side by side.
    for instance_id in found:
        await driver.stop(instance_id, grace=grace)
    end = clock.monotonic() + grace + _SPARE_SECONDS
    while found and clock.monotonic() < end:
        try:
            found = {instance.id: instance for instance in await driver.list()}
        except DriverError as error:
            tell(str(error))
        await asyncio.sleep(_PERIOD if found else 0.0)
    return list(found.values())
