"""The local driver on an event loop: stops that nobody looks after, and what it is called with."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.local_fleet import POOL, STUBBORN, session_of, swept, wait_gone
from tests.support.processes import until

from headrace.config.fleet.drivers import DriversConfig, LocalConfig
from headrace.config.fleet.pools import DriverKind, PoolConfig
from headrace.config.fleet.root import FleetConfig
from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError
from headrace.fleet.drivers.build import make_driver, make_drivers
from headrace.fleet.drivers.local.driver import LocalDriver
from headrace.fleet.drivers.places import fleet_name, state_directory


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    with swept(tmp_path / "fleet") as made:
        yield made


def driver(directory: Path) -> LocalDriver:
    return LocalDriver(directory, LocalConfig(), SystemClock(), command=STUBBORN)


async def pid_of(driver: LocalDriver, replica_id: str) -> int:
    described = await driver.describe(replica_id)
    assert described is not None
    return int(described["pid"])


async def test_one_that_does_not_end_is_killed_though_nobody_asks(directory: Path) -> None:
    made = driver(directory)
    started = await made.start(POOL)
    pid = await pid_of(made, started.id)
    await asyncio.to_thread(until, lambda: len(session_of(pid)) == 2, "it has begun")
    await made.stop(started.id, grace=0.1)
    await asyncio.to_thread(wait_gone, pid)
    await made.close()
    assert await made.list() == []


async def test_calls_at_one_moment_do_not_meet(directory: Path) -> None:
    made = driver(directory)
    tasks = [asyncio.ensure_future(made.start(POOL)) for _ in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    tasks[2].cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    listed = {instance.id for instance in await made.list()}
    ids = {found.id for found in done if not isinstance(found, BaseException)}
    assert len(ids) == 2
    assert ids <= listed
    for replica_id in listed:
        await made.stop(replica_id, grace=0)
    await made.close()


def test_fleets_of_different_files_are_different(tmp_path: Path) -> None:
    one = fleet_name(FleetConfig(), tmp_path / "My Fleet!.yaml")
    other = fleet_name(FleetConfig(), tmp_path / "b" / "My Fleet!.yaml")
    assert one.startswith("my-fleet-")
    assert one != other
    assert one == fleet_name(FleetConfig(), tmp_path / "b" / ".." / "My Fleet!.yaml")
    assert fleet_name(FleetConfig(), tmp_path / "ü.yaml").startswith("fleet-")
    assert fleet_name(FleetConfig(name="shop"), tmp_path / "x.yaml") == "shop"
    for made in (one, other):
        assert FleetConfig(name=made).name == made


def test_notes_lie_in_the_state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path))
    assert state_directory("shop", DriversConfig()) == tmp_path / "fleets" / "shop"
    chosen = DriversConfig(local=LocalConfig(directory="~/notes"))
    assert state_directory("shop", chosen) == Path.home() / "notes" / "shop"


def test_pools_are_looked_at_before_anything_starts(tmp_path: Path) -> None:
    config = FleetConfig(
        pools=(PoolConfig(name="chat", model="m", serve={"prot": 1}),),
        drivers=DriversConfig(local=LocalConfig(directory=str(tmp_path))),
    )
    with pytest.raises(ConfigError, match="'prot'"):
        make_drivers("shop", config, SystemClock())
    assert not list(tmp_path.iterdir())


async def test_one_driver_serves_all_pools_of_a_place(tmp_path: Path) -> None:
    pools = tuple(PoolConfig(name=name, model="m") for name in ("a", "b"))
    drivers = DriversConfig(local=LocalConfig(directory=str(tmp_path)))
    made = make_drivers("shop", FleetConfig(pools=pools, drivers=drivers), SystemClock())
    assert set(made) == {DriverKind.LOCAL}
    one = make_driver(DriverKind.LOCAL, "shop", drivers, SystemClock())
    assert await one.list() == await made[DriverKind.LOCAL].list() == []
