"""The loop under random load and random faults: never too many, nothing cut off, no flapping, and it always finds back."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.autoscaler_world import QUICK, World

from headrace.config.fleet.pools import PoolConfig
from headrace.config.fleet.scaling import PolicyKind, RolloutConfig
from headrace.fleet.autoscaler.members import Phase
from headrace.fleet.drivers.protocol import InstanceState

POOL = PoolConfig(name="chat", model="m", min_replicas=1, max_replicas=5)
SURGE = 1

EVENTS = st.one_of(
    st.tuples(st.just("load"), st.integers(0, 40)),
    st.tuples(st.just("queue"), st.integers(0, 30)),
    st.tuples(st.just("is_down"), st.booleans()),
    st.tuples(st.just("num_refused_starts"), st.integers(1, 3)),
    st.tuples(st.just("crash"), st.integers(0, 4)),
    st.tuples(st.just("vanish"), st.integers(0, 4)),
    st.tuples(st.just("break"), st.integers(0, 4)),
    st.tuples(st.just("crashes_at_once"), st.booleans()),
    st.tuples(st.just("takeover"), st.none()),
    st.tuples(st.just("version"), st.integers(0, 2)),
    st.tuples(st.just("scale"), st.none() | st.integers(0, 5)),
    st.tuples(st.just("steps"), st.integers(1, 12)),
)


def happen(world: World, kind: str, value: Any) -> None:
    """One event."""
    alive = world.alive()
    if kind in ("crash", "vanish", "break"):
        if alive:
            victim = alive[value % len(alive)]
            harm = {
                "crash": world.driver.fail,
                "vanish": world.driver.vanish,
                "break": world.broken.add,
            }
            harm[kind](victim)
        return
    match kind:
        case "load":
            world.running = float(value)
        case "queue":
            world.waiting = value
        case "is_down" | "num_refused_starts" | "crashes_at_once":
            setattr(world.driver, kind, value)
        case "takeover":
            world.new_controller()
        case "version":
            world.configure(replace(POOL, version=f"v{value}" if value else ""))
        case "scale":
            world.controller.scale("chat", value)


async def checked_step(world: World) -> None:
    """A look, and what must be true of it whatever happened."""
    before = {member.id: member for member in world.controller.planner.members.values()}
    log = len(world.driver.log)
    served = set(world.ready())
    await world.step()
    # Those of the last look that drain may still be there; beyond them, the bound and the surge hold.
    going = (InstanceState.STOPPING, InstanceState.FAILED)
    draining = {r.id for r in world.registry if r.is_draining}
    there = [i for i in world.driver.snapshot() if i.state not in going and i.id not in draining]
    assert len(there) <= POOL.max_replicas + SURGE, [i.id for i in there]
    for verb, instance_id in world.driver.log[log:]:
        if verb != "stop":
            continue
        member = world.controller.planner.members.get(instance_id) or before.get(instance_id)
        assert member is not None
        # What serves is never stopped at once: it was told to drain at a look before.
        assert member.phase is not Phase.READY or instance_id not in served, member


def normal(world: World) -> None:
    """All faults end."""
    world.driver.is_down = False
    world.driver.num_refused_starts = 0
    world.driver.crashes_at_once = False
    world.broken.clear()
    world.running, world.waiting = 10.0, 0
    world.controller.scale("chat", None)


@given(events=st.lists(EVENTS, min_size=1, max_size=14))
@settings(max_examples=40, deadline=None)
def test_it_finds_back_whatever_happens(events: list[tuple[str, Any]]) -> None:
    async def history(directory: Path) -> None:
        world = World(
            directory, POOL, scaling=replace(QUICK, policy=PolicyKind.SLOTS),
            rollout=RolloutConfig(surge=SURGE), start_timeout=30.0, unready_timeout=20.0,
            drain_timeout=20.0,
        )  # fmt: skip
        for kind, value in events:
            if kind == "steps":
                for _ in range(value):
                    await checked_step(world)
            else:
                happen(world, kind, value)
                await checked_step(world)
        normal(world)
        for _ in range(150):
            await checked_step(world)
        sizes = []
        for _ in range(20):
            await checked_step(world)
            sizes.append((len(world.ready()), len(world.driver.snapshot())))
        # 10 sequences on slots of 8, three quarters of which may be used: two, or three by the room that going down needs.
        assert len(set(sizes)) == 1, sizes
        assert sizes[0][0] == sizes[0][1]
        assert sizes[0][0] in (2, 3)
        assert not world.controller.planner.backoff("chat").is_crash_loop

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(history(Path(directory)))
