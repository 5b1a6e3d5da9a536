"""What bursts took outlives a controller, by the clock on the wall; what nobody wrote is left aside alone."""

import asyncio
import logging
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.support.autoscaler_world import QUICK, World

from headrace.config.fleet.pools import PoolConfig
from headrace.config.fleet.scaling import Objectives, PolicyKind
from headrace.fleet.autoscaler import bursts
from headrace.fleet.autoscaler.build import MEMORY
from headrace.fleet.autoscaler.memory import Memory, recall

POOL = PoolConfig(name="chat", model="m", min_replicas=1, max_replicas=4)
SCALING = replace(
    QUICK, policy=PolicyKind.TOKENS_PER_SECOND, slo=Objectives(ttft=1.0), burst_memory=3600.0
)
#: Seconds since the epoch, at a whole minute.
NOON = 1_000_000 * 60.0


def test_times_are_kept_by_the_clock_on_the_wall_and_to_the_minute() -> None:
    past = ((100.0, 5), (139.0, 3), (141.0, 2), (460.0, 1))
    kept = bursts.kept({"chat": past, "idle": ((460.0, 0),)}, now=460.0, wall=NOON)
    assert msgspec.json.decode(kept) == {
        "chat": [[999_994, 5], [999_995, 3], [1_000_000, 1]]
    }  # 2 stood in the minute of 3
    again = bursts.recalled(kept, now=1000.0, wall=NOON + 30)
    assert again == {"chat": ((610.0, 5), (670.0, 3), (970.0, 1))}


def test_a_burst_of_this_minute_is_not_of_the_future() -> None:
    kept = bursts.kept({"chat": ((50.0, 4),)}, now=50.0, wall=NOON + 1)
    assert bursts.recalled(kept, now=7.0, wall=NOON + 2) == {"chat": ((7.0, 4),)}


def test_a_steady_load_is_no_news_within_a_minute() -> None:
    texts = {
        bytes(bursts.kept({"chat": ((100.0 + s, 2),)}, now=100.0 + s, wall=NOON + 1 + s))
        for s in range(59)
    }
    assert len(texts) == 1


def test_the_next_controller_goes_on_and_forgets_at_the_same_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, POOL, scaling=SCALING)
        now = world.clock.monotonic()
        world.controller.planner.recall_bursts({"chat": ((now, 3),)})
        await world.steps(3)
        world.clock.advance(1800.0)
        world.new_controller()
        ((at, count), *_) = world.controller.planner.bursts()["chat"]
        assert count == 3
        assert now <= at <= now + 60.0
        await world.step()
        assert world.controller.planner.bursts()["chat"][0] == (at, 3)
        await world.step(1860.0)
        assert all(count < 3 for _, count in world.controller.planner.bursts()["chat"])

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "garbage",
    [
        "7",
        '"x"',
        '{"chat": [[1, 0]]}',
        '{"chat": [[-1, 2]]}',
        '{"chat": [[1, 1e300]]}',
        '{"chat": [[9999999999, 2]]}',
        '{"chat": [[1, 2, 3]]}',
        '{"chat": [' + ",".join(["[1, 2]"] * 65) + "]}",
    ],
)
def test_what_nobody_wrote_costs_no_operators_word(
    tmp_path: Path, garbage: str, caplog: pytest.LogCaptureFixture
) -> None:
    kept = Memory(overrides={"chat": 2}, bursts=msgspec.Raw(garbage.encode()))
    (tmp_path / MEMORY).write_bytes(msgspec.json.encode(kept))
    with caplog.at_level(logging.WARNING):
        world = World(tmp_path, POOL, scaling=SCALING)
    planner = world.controller.planner
    assert (planner.overrides, planner.bursts()) == ({"chat": 2}, {})
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "What bursts took is begun anew"
    ]


def test_a_file_of_before_is_read_and_one_of_a_later_release_left_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / MEMORY
    file.write_text('{"overrides": {"chat": 2}}')
    assert recall(file) == Memory(overrides={"chat": 2})
    for text in ('{"version": 2, "overrides": {"chat": 2}}', '{"bursts": ' + "[" * 9999):
        file.write_text(text)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert recall(file) == Memory()
        assert "begun anew" in caplog.text


def test_pools_that_are_gone_are_left_out(tmp_path: Path) -> None:
    data = msgspec.Raw(b'{"chat": [[0, 2]], "gone": [[0, 9]]}')
    (tmp_path / MEMORY).write_bytes(msgspec.json.encode(Memory(bursts=data)))
    assert set(World(tmp_path, POOL, scaling=SCALING).controller.planner.bursts()) == {"chat"}
