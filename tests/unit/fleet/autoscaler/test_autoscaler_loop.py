"""The loop from lists to actions, on a fake clock: up, down, to zero, failures, rollouts, takeovers."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.autoscaler_world import QUICK, FakeLease, World

from headrace.config.fleet.pools import PoolConfig
from headrace.config.fleet.scaling import PolicyKind, RolloutConfig, ScalingConfig
from headrace.core.errors import BadRequestError, NotFoundError
from headrace.fleet.autoscaler.cold_starts import StartKind
from headrace.fleet.autoscaler.lease import FileLease
from headrace.fleet.autoscaler.members import Phase
from headrace.observe import autoscaler_metrics as table
from headrace.observe.gateway_metrics import REPLICA_REQUESTS

POOL = PoolConfig(name="chat", model="m", min_replicas=1, max_replicas=4)
SLOTS_POLICY = replace(QUICK, policy=PolicyKind.SLOTS)

Scenario = Callable[[World], Coroutine[Any, Any, None]]


def run(tmp_path: Path, scenario: Scenario, *pools: PoolConfig, **config: Any) -> World:
    async def main() -> World:
        world = World(tmp_path, *(pools or (POOL,)), **{"scaling": SLOTS_POLICY, **config})
        await scenario(world)
        return world

    return asyncio.run(main())


def test_it_starts_the_least_grows_with_load_and_shrinks_by_draining(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.step()
        assert world.driver.log == [("start", "chat-1")]
        await world.steps(3)
        assert world.ready() == ["chat-1"]
        world.running = 20.0
        await world.steps(12)
        assert len(world.ready()) == 4
        world.running = 4.0
        await world.steps(40)
        stops = [i for verb, i in world.driver.log if verb == "stop"]
        assert len(stops) == 3
        texts = world.texts()
        for stopped in stops:
            entries = [e for e in world.controller.entries.last(999) if e.instance == stopped]
            said = [e.text.split(":")[0] for e in entries]
            assert said == ["is started", "drains", "is stopped"]
        assert any("drains: fewer are needed" in text for text in texts)
        assert len(world.ready()) == 1

    run(tmp_path, scenario)


def test_what_drains_is_left_until_its_requests_have_ended(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.controller.scale("chat", 2)
        await world.steps(5)
        leases = [r.lease(prefill_tokens=1, decode_tokens=1) for r in world.registry]
        world.controller.scale("chat", 1)
        await world.steps(10)
        assert [verb for verb, _ in world.driver.log] == ["start", "start"]
        assert len(world.ready()) == 1
        for lease in leases:
            lease.close()
        await world.steps(2)
        assert world.driver.log[-1][0] == "stop"
        assert len(world.alive()) == 1

    run(tmp_path, scenario)


def test_to_zero_and_back_for_a_request(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.arrivals = 1.0
        await world.steps(2)
        assert world.alive() == []  # nothing waits, so nothing is started
        assert world.registry.is_asleep
        assert world.registry.startable == {"m"}
        world.admission.waits = lambda: {"m": (1, 0.1)}  # type: ignore[method-assign]
        await world.step(0.1)
        assert len(world.alive()) == 1
        world.admission.waits = dict  # type: ignore[method-assign]
        world.arrivals = 0.0
        await world.steps(4)
        assert len(world.ready()) == 1
        assert not world.registry.is_asleep
        await world.steps(14)
        assert len(world.ready()) == 0
        await world.steps(3)
        assert world.alive() == []
        assert any("no request for" in text for text in world.texts())

    run(tmp_path, scenario, replace(POOL, min_replicas=0))


def test_a_cold_lane_wakes_the_loop_if_a_pool_serves_it(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.admission.watcher.cold("something else")
        assert not world.controller._wake.is_set()
        world.admission.watcher.cold("m@2")  # of another version
        assert not world.controller._wake.is_set()
        world.admission.watcher.cold("m")
        assert world.controller._wake.is_set()

    run(tmp_path, scenario)


def test_failed_ones_are_replaced_more_and_more_slowly(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.driver.crashes_at_once = True
        await world.steps(50)
        starts = [i for verb, i in world.driver.log if verb == "start"]
        assert 4 <= len(starts) <= 9  # in 100 s, with waits of 2, 4, 8, 16, 20, 20, …
        assert world.controller.planner.backoff("chat").is_crash_loop
        assert world.metrics.value(table.POOL_CRASH_LOOP, ("chat",)) == 1.0
        assert world.metrics.value(table.POOL_FAILURES, ("chat",)) == len(starts)
        assert any("crash loop" in text for text in world.texts())
        assert len(world.driver.snapshot()) <= 1  # what failed is cleared away
        world.driver.crashes_at_once = False
        await world.steps(40)
        assert len(world.ready()) == 1
        assert not world.controller.planner.backoff("chat").is_crash_loop
        assert world.metrics.value(table.POOL_CRASH_LOOP, ("chat",)) == 0.0

    run(tmp_path, scenario)


def test_one_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.step()
        world.broken.add("chat-1")
        await world.steps(18)
        assert ("stop", "chat-1") in world.driver.log
        assert world.ready() == ["chat-2"]
        assert any("not ready within 20 s" in text for text in world.texts())

    run(tmp_path, scenario, start_timeout=20.0)


def test_one_that_is_not_ready_any_more_is_replaced_late(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.steps(4)
        world.broken.add("chat-1")
        await world.steps(4)
        assert len(world.driver.log) == 1
        await world.steps(8)
        assert world.ready() == ["chat-2"]

    run(tmp_path, scenario, unready_timeout=12.0)


def test_nothing_is_concluded_from_a_place_that_cannot_be_asked(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.steps(5)
        before = list(world.driver.log)
        world.driver.is_down = True
        await world.steps(30)
        assert world.ready() == ["chat-1"]  # the gateway still routes there
        assert any("cannot be asked" in text for text in world.texts())
        world.driver.is_down = False
        await world.steps(5)
        assert world.driver.log == before

    run(tmp_path, scenario)


def test_refused_starts_are_tried_again(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.driver.num_refused_starts = 2
        await world.steps(10)
        assert len(world.ready()) == 1
        assert "There is no room." in world.texts()
        assert world.metrics.value(table.DRIVER_ERRORS, ("local",)) == 2.0

    run(tmp_path, scenario)


def test_a_new_controller_adopts_and_takes_nothing_away(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.controller.scale("chat", 3)
        await world.steps(5)
        ids = sorted(world.ready())
        assert len(ids) == 3
        world.new_controller()
        await world.steps(8)
        assert sorted(world.ready()) == ids
        assert len(world.driver.log) == 3
        assert world.controller.planner.overrides == {"chat": 3}
        world.controller.scale("chat", None)
        await world.steps(4)
        assert len(world.ready()) == 3  # down late
        await world.steps(20)
        assert len(world.ready()) == 1

    run(tmp_path, scenario)


def test_only_one_controller_acts(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.lease.is_free = False
        assert await world.step() is None
        assert world.driver.log == []
        assert world.metrics.value(table.IS_LEADER, ()) == 0.0
        world.lease.is_free = True
        await world.step()
        assert len(world.driver.log) == 1
        assert world.metrics.value(table.IS_LEADER, ()) == 1.0

    run(tmp_path, scenario)


def test_file_leases_exclude_each_other(tmp_path: Path) -> None:
    first, second = FileLease(tmp_path / "x" / "lock"), FileLease(tmp_path / "x" / "lock")
    assert first.holds()
    assert first.holds()
    assert not second.holds()
    first.release()
    assert second.holds()
    assert isinstance(FakeLease().holds(), bool)


def test_advice_is_only_logged(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.steps(3)
        assert world.driver.log == []
        decision = world.controller.entries.latest()["chat"]
        assert (decision.desired, decision.is_advisory) == (1, True)

    run(tmp_path, scenario, advisory=True)


def test_operators_words_are_checked(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(NotFoundError, match="no pool 'other'; there are: chat"):
            world.controller.scale("other", 1)
        for count in (-1, 5):
            with pytest.raises(BadRequestError, match="0 to 4"):
                world.controller.scale("chat", count)
        world.controller.scale("chat", 0)
        await world.steps(2)
        assert world.driver.log == []

    run(tmp_path, scenario)


def test_warm_ones_are_kept_and_woken_first(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.steps(4)
        assert [verb for verb, _ in world.driver.log] == ["start", "prestart"]
        assert world.ready() == ["chat-1"]
        world.running = 9.0
        world.driver.load("chat-2")  # as its order to load will have it
        await world.steps(3)
        assert sorted(world.ready())[:2] == ["chat-1", "chat-2"]
        assert world.controller.planner.cold_starts.mean("chat", StartKind.EXEC) == pytest.approx(
            3, abs=2
        )

    run(tmp_path, scenario, replace(POOL, warm_replicas=1))


def test_what_has_drained_is_parked_where_warm_ones_are_wanted(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.controller.scale("chat", 2)
        await world.steps(5)
        world.configure(replace(POOL, warm_replicas=1))
        world.controller.scale("chat", 1)
        await world.steps(4)
        phases = sorted(member.phase for member in world.controller.planner.members.values())
        assert phases.count(Phase.READY) == 1
        assert phases.count(Phase.WARM) + phases.count(Phase.WARMING) == 1

    run(tmp_path, scenario)


def test_a_warm_one_that_does_not_wake_is_replaced(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.steps(4)
        world.warmth.refuses = True
        world.controller.scale("chat", 2)
        await world.steps(8)
        assert len(world.ready()) == 2
        assert any("could not be woken" in text for text in world.texts())

    run(tmp_path, scenario, replace(POOL, warm_replicas=1))


NEXT = replace(POOL, version="2", min_replicas=3)


def test_a_rolling_update_never_has_fewer_ready(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.steps(4)
        old = set(world.ready())
        assert len(old) == 3
        world.configure(NEXT)
        for _ in range(40):
            await world.step()
            assert len(world.ready()) >= 3
            assert len(world.alive()) <= 4  # three and one more, those that drain included
        assert len(world.ready()) == 3
        assert not old & set(world.ready())
        assert {i.version for i in world.driver.snapshot()} == {"2"}

    run(tmp_path, scenario, replace(POOL, min_replicas=3))


def test_a_version_that_does_not_start_is_rolled_back(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.steps(4)
        old = set(world.ready())
        world.configure(NEXT)
        world.driver.crashes_at_once = True
        await world.steps(30)
        assert set(world.ready()) == old
        assert any("was given up: 3 replicas of it failed to start" in t for t in world.texts())
        starts = len(world.driver.log)
        await world.steps(30)
        assert len(world.driver.log) == starts  # and is not tried again
        # What fails now is replaced by what worked.
        world.driver.crashes_at_once = False
        world.driver.fail(min(old))
        await world.steps(10)
        assert len(world.ready()) == 3
        assert {i.version for i in world.driver.snapshot()} == {""}

    run(tmp_path, scenario, replace(POOL, min_replicas=3), rollout=RolloutConfig(surge=1))


def test_a_version_that_fails_requests_is_rolled_back_by_a_new_controller_too(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        await world.steps(4)
        world.configure(NEXT)
        await world.steps(5)
        new = [i for i in world.ready() if int(i.split("-")[1]) > 3]
        assert new
        world.metrics.add(REPLICA_REQUESTS, (new[0], "ok"), 50.0)
        world.metrics.add(REPLICA_REQUESTS, (new[0], "status"), 50.0)
        await world.step()
        assert any("50.0% of its requests failed" in text for text in world.texts())
        world.new_controller()
        await world.steps(30)
        assert len(world.ready()) == 3
        assert {i.version for i in world.driver.snapshot()} == {""}

    run(tmp_path, scenario, replace(POOL, min_replicas=3))


def test_pools_that_left_the_file_are_drained_and_stopped(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.steps(5)
        world.configure(replace(POOL, name="other"))
        await world.step()
        assert world.ready("chat") == []
        await world.steps(6)
        assert world.alive("chat") == []
        assert len(world.ready("other")) == 1

    run(tmp_path, scenario)


def test_cold_starts_are_measured(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.load_seconds = 7.0
        await world.steps(8)
        found = [
            h.count
            for labels, h in world.metrics.histograms(table.COLD_START)
            if labels == ("chat", "exec")
        ]
        assert found == [1]
        mean = world.controller.planner.cold_starts.mean("chat", StartKind.EXEC)
        assert mean == pytest.approx(9.0)  # it was listed at the look after its start
        world.new_controller()
        assert world.controller.planner.cold_starts.mean("chat", StartKind.EXEC) == mean

    run(tmp_path, scenario)


def test_queue_policy_with_several_groups(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.steps(5)
        world.admission.waits = lambda: {"b": (9, 5.0)}  # type: ignore[method-assign]
        await world.steps(4)
        assert len(world.ready("chat")) == 1
        assert len(world.ready("second")) >= 3

    second = PoolConfig(name="second", model="b")
    run(tmp_path, scenario, POOL, second, scaling=ScalingConfig(policy=PolicyKind.QUEUE))
