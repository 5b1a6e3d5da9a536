"""Replicas that stand in the file beside a pool of the same model: what they serve is not the pool's traffic."""

from pathlib import Path

import pytest
from tests.support.autoscaler_world import World

from headrace.config.fleet.pools import PoolConfig
from headrace.config.fleet.replicas import ReplicaSpec
from headrace.fleet.gateway.flow.slot import Slot
from headrace.fleet.gateway.flow.values import Ticket

STATIC = ReplicaSpec(url="http://beside:1", id="beside", models=("m",))
TICKET = Ticket(lane="m", tenant="t", priority="standard", prompt_tokens=100, output_tokens=50)


class Ignores:
    """Owns turns and does nothing about them."""

    def placed(self, slot: Slot) -> None:
        """Nothing."""

    def closed(self, slot: Slot) -> None:
        """Nothing."""


def serve(world: World, replica_id: str) -> None:
    sensors, now = world.controller.sensors, world.clock.monotonic()
    sensors.arrived(TICKET)
    slot = Slot(Ignores(), TICKET, 0.0, arrived=now)
    slot.used(prompt_tokens=100, output_tokens=50)
    slot.answered(replica_id, None)
    sensors.ended(slot)


@pytest.mark.parametrize("others", [0, 1, 3], ids=["alone", "half", "most"])
async def test_only_the_pools_part_counts(tmp_path: Path, others: int) -> None:
    world = World(tmp_path, PoolConfig(name="p", model="m", min_replicas=1, max_replicas=1))
    world.registry.reconcile([STATIC])

    async def found() -> None:
        world.registry.reconcile([STATIC, *(await world.controller.discovery.list() or ())])

    world.controller.on_instances = found
    await world.steps(10)
    (own,) = world.ready("p")
    for _ in range(60):
        world.clock.advance(1.0)
        for _ in range(2):
            serve(world, own)
            for _ in range(others):
                serve(world, STATIC.name)
    (signals,) = world.controller.sensors.signals().values()
    assert signals.arrivals_per_second == pytest.approx(2.0, rel=0.05)
    assert signals.incoming_tokens_per_second is not None
    weight = world.config.autoscaler.of("p").tokens.prompt_weight
    expected = 2.0 * (100 * weight + 50)
    assert signals.incoming_tokens_per_second == pytest.approx(expected, rel=0.05)
