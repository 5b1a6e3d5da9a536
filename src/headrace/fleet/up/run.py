"""`headrace up`: a gateway with an autoscaler beside it, and the replicas of all pools. `headrace down` ends all that."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headrace.config.fleet.root import FleetConfig
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.fleet.autoscaler.build import MEMORY
from headrace.fleet.autoscaler.memory import forget_overrides
from headrace.fleet.drivers.build import check_pools, make_drivers
from headrace.fleet.drivers.local import process
from headrace.fleet.drivers.places import fleet_name, state_directory
from headrace.fleet.gateway.companion import MakeCompanion
from headrace.fleet.gateway.run import check_parts, run_gateway
from headrace.fleet.up.lease import holder_of, lease
from headrace.fleet.up.stop import stop_all

#: Seconds that replicas get to end once nothing is sent to them any more.
STOP_GRACE: Final = 30.0
#: Beyond its own bounds: so long a controller may take to end.
_SPARE_SECONDS: Final = 30.0
_PERIOD: Final = 0.05

Tell = Callable[[str], None]


def check_fleet(config: FleetConfig) -> None:
    """Raises ConfigError for what is well formed and cannot be."""
    check_parts(config)
    check_pools(config.pools)
    if not config.pools:
        raise ConfigError(
            "The fleet has no pools; `headrace gateway` serves replicas that run by themselves."
        )


def run_up(
    file: Path,
    config: FleetConfig,
    *,
    keeps: bool,
    companion: MakeCompanion,
    clock: Clock,
    tell: Tell,
) -> int:
    """Serve until a signal, then stop all replicas unless it `keeps` them; the exit code.

    Raises ConfigError, also where the fleet is up already.
    """
    check_fleet(config)
    name = fleet_name(config, file)
    with lease(state_directory(name, config.drivers)):
        code = run_gateway(
            file,
            config,
            clock=clock,
            companion=companion,
            announce=lambda url: tell(summary(name, config, url, keeps=keeps)),
        )
        if keeps:
            tell("The replicas run on; `headrace up` adopts them, `headrace down` stops them.")
            return code
        return code or _stop(name, config, clock, STOP_GRACE, tell)


def run_down(file: Path, config: FleetConfig, *, grace: float, clock: Clock, tell: Tell) -> int:
    """End the controller of a fleet, wherever it runs on this machine, and all replicas: 0 when nothing is left.

    Raises ConfigError, DriverError; for what can be known beforehand, before anything is ended.
    """
    name = fleet_name(config, file)
    directory = state_directory(name, config.drivers)
    asyncio.run(_check_places(name, config, clock))
    holder = holder_of(directory)
    told: list[str] = []

    def say(words: str) -> None:
        told.append(words)
        tell(words)

    if holder is not None:
        say(f"Ending process {holder.pid}, which has the fleet up …")
        process.send(holder, signal.SIGTERM)
        patience = config.gateway.drain_timeout + STOP_GRACE + _SPARE_SECONDS
        end = clock.monotonic() + patience
        while holder_of(directory) is not None:
            if clock.monotonic() > end:
                say(f"Process {holder.pid} has not ended within {patience:.0f} s.")
                return 1
            clock.sleep(_PERIOD)
    with lease(directory):
        code = _stop(name, config, clock, grace, say)
    if not told:
        tell(f"Nothing of the fleet {name} runs.")
    return code


def summary(name: str, config: FleetConfig, url: str, *, keeps: bool) -> str:
    """What is up, and how it ends."""
    lines = [f"The fleet {name} is at {url}"]
    width = max(len(pool.name) for pool in config.pools)
    for pool in config.pools:
        counts = _counts(pool.min_replicas, pool.max_replicas)
        warm = f", {pool.warm_replicas} warm" if pool.warm_replicas else ""
        lines.append(f"  {pool.name.ljust(width)}  {pool.model}: {counts}{warm}, {pool.driver}")
    lines.append(
        "Ctrl-C ends the gateway; the replicas run on."
        if keeps
        else "Ctrl-C finishes what runs, then stops the replicas."
    )
    return "\n".join(lines)


def _counts(least: int, most: int) -> str:
    words = f"{most}" if least == most else f"{least} to {most}"
    return f"{words} replica{'' if most == 1 else 's'}"


def _stop(name: str, config: FleetConfig, clock: Clock, grace: float, tell: Tell) -> int:
    """All replicas, and what operators have set: it was said of this fleet, and holds as long as it is up."""
    try:
        code = asyncio.run(_stop_now(name, config, clock, grace, tell))
    except KeyboardInterrupt:
        tell("Once more: killing them.")
        code = asyncio.run(_stop_now(name, config, clock, 0.0, tell))
    freed = forget_overrides(state_directory(name, config.drivers) / MEMORY)
    if freed:
        tell(
            f"By policy again at the next start, and no longer as set by `scale`: {', '.join(freed)}."
        )
    return code


async def _check_places(name: str, config: FleetConfig, clock: Clock) -> None:
    """Raises ConfigError, DriverError where replicas could not be stopped: their controller must not end before them."""
    for driver in make_drivers(name, config, clock).values():
        await driver.close()


async def _stop_now(name: str, config: FleetConfig, clock: Clock, grace: float, tell: Tell) -> int:
    drivers = make_drivers(name, config, clock)
    left = await stop_all(drivers.values(), clock, grace=grace, tell=tell)
    if left:
        tell(f"Still there: {', '.join(instance.id for instance in left)}.")
    return 1 if left else 0
