"""Phases that are shown are those of now: the gateway may know more than the autoscaler's last look."""

import asyncio
from pathlib import Path

from msgspec.structs import replace
from tests.support.autoscaler_world import QUICK, World

from headrace.config.fleet.pools import PoolConfig
from headrace.config.fleet.scaling import PolicyKind
from headrace.fleet.autoscaler.admin import status_of
from headrace.fleet.autoscaler.shapes import InstanceStatus

POOL = PoolConfig(name="chat", model="m", min_replicas=1, max_replicas=1)


def shown(world: World) -> InstanceStatus:
    (pool,) = status_of(world.controller, world.clock).pools
    return pool.instances[0]


def test_an_adopted_replica_that_serves_is_shown_as_ready_before_the_next_look(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        world = World(tmp_path, POOL, scaling=replace(QUICK, policy=PolicyKind.SLOTS))
        await world.steps(4)
        assert shown(world).phase == "ready"
        world.new_controller()
        await world.controller.tick()
        assert shown(world).phase == "starting"
        (replica,) = world.registry
        world.clock.advance(0.5)
        replica.ready_since = world.clock.monotonic()  # its probe was answered
        world.clock.advance(0.25)
        seen = shown(world)
        assert (seen.phase, seen.seconds) == ("ready", 0.25)
        await world.controller.tick()
        assert shown(world).phase == "ready"
        replica.ready_since = None
        assert shown(world).phase == "unready"
        replica.ready_since = world.clock.monotonic()
        world.registry.set_draining(replica, True)
        await world.controller.tick()
        assert shown(world).phase == "draining"

    asyncio.run(scenario())
