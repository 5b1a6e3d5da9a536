"""All replicas are told, and waited for as long as they may take."""

import asyncio
import re
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.support.fake_clock import FakeClock
from tests.support.fake_driver import FakeDriver

from headrace.cli.main import main
from headrace.config.fleet.drivers import DriversConfig, LocalConfig
from headrace.config.fleet.pools import DriverKind, PoolConfig
from headrace.config.fleet.root import FleetConfig
from headrace.core.errors import ConfigError, DriverError
from headrace.fleet.autoscaler.build import MEMORY
from headrace.fleet.autoscaler.memory import Memory, recall
from headrace.fleet.drivers.local import process
from headrace.fleet.up.lease import lease
from headrace.fleet.up.run import check_fleet, run_down, summary
from headrace.fleet.up.stop import stop_all

POOL = PoolConfig(name="chat", model="tiny", warm_replicas=1)


async def passing(clock: FakeClock) -> None:
    while True:
        clock.advance(0.5)
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(("stopping", "num_left"), [(5.0, 0), (500.0, 0), (0.0, 0)])
async def test_those_of_every_place_end(stopping: float, num_left: int) -> None:
    clock, told = FakeClock(), list[str]()
    drivers = [FakeDriver(clock, stopping=stopping) for _ in range(2)]
    for driver in drivers:
        for _ in range(2):
            await driver.start(POOL)
    time = asyncio.ensure_future(passing(clock))
    left = await stop_all(drivers, clock, grace=10, tell=told.append)
    time.cancel()
    assert len(left) == num_left
    assert [len(driver.snapshot()) for driver in drivers] == [0, 0]
    assert told == ["Stopping chat-1, chat-2 …"] * 2


class Endless(FakeDriver):
    """Its instances are told, and stay."""

    async def stop(self, instance_id: str, *, grace: float) -> None:
        """Nothing happens."""


async def test_it_gives_up_and_says_who_is_left() -> None:
    clock = FakeClock()
    driver = Endless(clock)
    started = await driver.start(POOL)
    time = asyncio.ensure_future(passing(clock))
    left = await stop_all([driver], clock, grace=10, tell=lambda _: None)
    time.cancel()
    assert [instance.id for instance in left] == [started.id]


async def test_a_place_that_cannot_be_asked_is_an_error() -> None:
    driver = FakeDriver(FakeClock())
    driver.is_down = True
    with pytest.raises(DriverError):
        await stop_all([driver], FakeClock(), grace=1, tell=lambda _: None)


def test_down_of_a_fleet_that_is_not_up_is_done(tmp_path: Path) -> None:
    drivers = DriversConfig(local=LocalConfig(directory=str(tmp_path)))
    config = FleetConfig(name="shop", pools=(POOL,), drivers=drivers)
    told: list[str] = []
    assert run_down(tmp_path / "x", config, grace=1, clock=FakeClock(), tell=told.append) == 0
    assert told == ["Nothing of the fleet shop runs."]


def test_a_file_is_looked_at_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("pools: [{name: chat, model: m, serve: {prot: 1}}]")
    assert main(["up", str(file), "--check"]) == 2
    assert "'prot', which is no flag of headrace serve" in capsys.readouterr().err
    file.write_text("pools: [{name: chat, model: m}]")
    assert main(["up", str(file), "--check"]) == 0
    assert capsys.readouterr().out == f"{file} is good: 1 pool.\n"
    assert main(["down", str(file), "--grace", "soon"]) == 2
    assert (
        "--grace: 'soon' is not a duration such as 50ms, 30s or 2m (see" in capsys.readouterr().err
    )


def test_what_an_operator_has_set_ends_with_the_fleet_and_nothing_else_is_forgotten(
    tmp_path: Path,
) -> None:
    drivers = DriversConfig(local=LocalConfig(directory=str(tmp_path)))
    config = FleetConfig(name="shop", pools=(POOL,), drivers=drivers)
    file = tmp_path / "shop" / MEMORY
    file.parent.mkdir(mode=0o700)
    known = Memory(overrides={"chat": 3}, capacities={"chat": 120.0})
    file.write_bytes(msgspec.json.encode(known))
    told: list[str] = []
    assert run_down(tmp_path / "x", config, grace=1, clock=FakeClock(), tell=told.append) == 0
    assert recall(file) == replace(known, overrides={})
    assert told == ["By policy again at the next start, and no longer as set by `scale`: chat."]


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        (replace(POOL, serve={"prot": 1}), "no flag of headrace serve"),
        (replace(POOL, serve={"max-context": "much"}), "--max-context"),
        (replace(POOL, driver=DriverKind.KUBERNETES), "warm_replicas"),
    ],
)
def test_down_looks_at_all_of_the_file_before_it_ends_anything(
    tmp_path: Path, pool: PoolConfig, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drivers = DriversConfig(local=LocalConfig(directory=str(tmp_path)))
    config = FleetConfig(name="shop", pools=(pool,), drivers=drivers)
    told: list[str] = []
    signalled: list[object] = []
    monkeypatch.setattr(process, "send", lambda holder, signal: signalled.append(holder))
    with lease(tmp_path / "shop"), pytest.raises(ConfigError, match=words):
        run_down(tmp_path / "x", config, grace=1, clock=FakeClock(), tell=told.append)
    assert (told, signalled) == ([], [])


def test_a_fleet_without_pools_is_not_for_up() -> None:
    with pytest.raises(ConfigError, match="headrace gateway"):
        check_fleet(FleetConfig())


def test_the_summary_names_address_pools_and_the_way_out() -> None:
    config = FleetConfig(pools=(POOL, PoolConfig(name="embeddings", model="e5", min_replicas=0)))
    text = summary("shop", config, "http://127.0.0.1:8080", keeps=False)
    assert "shop is at http://127.0.0.1:8080" in text
    assert re.search(r"chat +tiny: 1 to 4 replicas, 1 warm, local", text)
    assert re.search(r"embeddings +e5: 0 to 4 replicas, local", text)
    assert "stops the replicas" in text
    assert "run on" in summary("shop", config, "u", keeps=True)
