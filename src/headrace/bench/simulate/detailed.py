"""Detailed mode: every step of the real scheduler and ledger, behind the real gateway, in simulated time."""

import asyncio
from collections.abc import Iterator
from random import Random

from headrace.bench.simulate.arrivals import block_tokens
from headrace.bench.simulate.engine_server import EngineServer
from headrace.bench.simulate.gateway import SimulatedGateway
from headrace.bench.simulate.options import SimulateOptions
from headrace.bench.simulate.place import SimulatedPlace
from headrace.bench.simulate.profile import Profile
from headrace.bench.simulate.scaling import POOL, Autoscaler, first_size, plan_of
from headrace.bench.simulate.tally import Tally
from headrace.bench.simulate.virtual_time import VirtualClock, run_virtual
from headrace.bench.trace import TraceRow
from headrace.config.fleet.pools import PoolConfig
from headrace.config.fleet.root import FleetConfig
from headrace.config.fleet.routing import RoutingConfig
from headrace.fleet.autoscaler.gather import ReplicaLook
from headrace.fleet.drivers.protocol import InstanceState


def run_detailed(
    options: SimulateOptions,
    profile: Profile,
    rows: Iterator[TraceRow],
    tally: Tally,
    autoscaler: Autoscaler | None = None,
) -> None:
    """Fill `tally`. Requests that run at the end of the duration are answered."""
    clock = VirtualClock()
    run = _Run(options, profile, clock, tally, autoscaler)
    run_virtual(run.run(rows), clock)


def look_at(server: EngineServer, utilisation: float | None) -> ReplicaLook:
    """What the autoscaler sees of a replica."""
    stats = server.stats()
    used = stats.blocks_total - stats.blocks_free
    return ReplicaLook(
        num_running=stats.num_running,
        num_waiting=server.num_waiting,
        slots=server.max_num_seqs,
        kv_usage=used / max(1, stats.blocks_total),
        utilisation=utilisation,
    )


class _Run:
    def __init__(
        self,
        options: SimulateOptions,
        profile: Profile,
        clock: VirtualClock,
        tally: Tally,
        autoscaler: Autoscaler | None,
    ) -> None:
        self._options = options
        self._profile = profile
        self._clock = clock
        self._tally = tally
        self._autoscaler = autoscaler
        self._pool = PoolConfig(name=POOL, model=profile.model, max_replicas=10_000)
        self._rng = Random(f"{options.seed}:place")

    async def run(self, rows: Iterator[TraceRow]) -> None:
        options = self._options
        config = FleetConfig(routing=RoutingConfig(policy=options.routing))
        gateway = SimulatedGateway(
            config, self._profile, self._clock, Random(f"{options.seed}:gateway")
        )
        place = SimulatedPlace(
            self._profile,
            options.place,
            self._clock,
            self._rng,
            self._tally,
            on_change=gateway.reconcile,
        )
        gateway.servers = place.servers
        self._wanted = first_size(options, plan_of(options))
        for _ in range(self._wanted):
            place.start_ready(self._pool)
        gateway.autoscaler = place.autoscaler = self._autoscaler
        helpers = [asyncio.create_task(self._keep(place))]
        if self._autoscaler is not None:
            scaling = self._scale(self._autoscaler, gateway, place)
            helpers.append(asyncio.create_task(scaling))
        if options.place.kill_every > 0:
            helpers.append(asyncio.create_task(self._kill(place)))
        await self._feed(gateway, rows)
        for helper in helpers:
            helper.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)
        await place.close()
        await gateway.close()
        self._tally.close()

    async def _feed(self, gateway: SimulatedGateway, rows: Iterator[TraceRow]) -> None:
        size = block_tokens(self._options.load)
        async with asyncio.TaskGroup() as group:
            for row in rows:
                await asyncio.sleep(max(0.0, row.at - self._clock.now))
                self._tally.arrived(row.at, row.input_tokens + row.output_tokens)
                group.create_task(gateway.serve(row, size, self._tally))

    async def _keep(self, place: SimulatedPlace) -> None:
        """Start what is missing, stop what is too much: what ended by itself is started again."""
        while True:
            await self._settle(place)
            await asyncio.sleep(1.0)

    async def _settle(self, place: SimulatedPlace) -> None:
        instances = await place.list()
        for instance in instances:
            if instance.state is InstanceState.FAILED:
                await place.stop(instance.id, grace=0.0)
        pending = [i.id for i in instances if i.state is InstanceState.PENDING]
        running = [i.id for i in instances if i.state is InstanceState.RUNNING]
        missing = self._wanted - len(pending) - len(running)
        for _ in range(missing):
            await place.start(self._pool)
        # The youngest that starts, else the one with the least to do.
        running.sort(key=lambda i: -place.servers[i].num_requests)
        grace = self._autoscaler.drain_timeout if self._autoscaler is not None else 0.0
        for instance_id in [*running, *pending][len(pending) + len(running) + min(0, missing) :]:
            await place.stop(instance_id, grace=grace)

    async def _scale(
        self, autoscaler: Autoscaler, gateway: SimulatedGateway, place: SimulatedPlace
    ) -> None:
        while True:
            now = self._clock.now
            num_pending = sum(i.state is InstanceState.PENDING for i in await place.list())
            use = autoscaler.utilisation(now, place.busy_seconds, self._tally.ready_seconds(now))
            looks = [look_at(place.servers[i], use) for i in place.serving()]
            self._wanted = autoscaler.look(now, looks, gateway.queue_look(), num_pending)
            await self._settle(place)
            await asyncio.sleep(autoscaler.period)

    async def _kill(self, place: SimulatedPlace) -> None:
        rng = Random(f"{self._options.seed}:kill")
        while True:
            await asyncio.sleep(rng.expovariate(1.0 / self._options.place.kill_every))
            place.kill_one()
