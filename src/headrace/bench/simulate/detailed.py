"""Detailed mode: every step of the real scheduler and ledger, behind the real gateway, in simulated time."""

import asyncio
from collections.abc import Iterator
from random import Random

from headrace.bench.simulate.arrivals import block_tokens
from headrace.bench.simulate.gateway import SimulatedGateway
from headrace.bench.simulate.options import SimulateOptions
from headrace.bench.simulate.place import SimulatedPlace
from headrace.bench.simulate.profile import Profile
from headrace.bench.simulate.tally import Tally
from headrace.bench.simulate.virtual_time import VirtualClock, run_virtual
from headrace.bench.trace import TraceRow
from headrace.config.fleet.pools import PoolConfig
from headrace.config.fleet.root import FleetConfig
from headrace.config.fleet.routing import RoutingConfig

POOL = "pool"


def run_detailed(
    options: SimulateOptions, profile: Profile, rows: Iterator[TraceRow], tally: Tally
) -> None:
    """Fill `tally`. Requests that run at the end of the duration are answered."""
    clock = VirtualClock()
    run_virtual(_Run(options, profile, clock, tally).run(rows), clock)


class _Run:
    def __init__(
        self, options: SimulateOptions, profile: Profile, clock: VirtualClock, tally: Tally
    ) -> None:
        self._options = options
        self._profile = profile
        self._clock = clock
        self._tally = tally
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
        pool = PoolConfig(name=POOL, model=self._profile.model, max_replicas=10_000)
        for _ in range(options.replicas):
            place.start_ready(pool)
        helpers = [asyncio.create_task(self._replace(place, pool))]
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

    async def _replace(self, place: SimulatedPlace, pool: PoolConfig) -> None:
        """A fixed fleet: what ended is started again."""
        while True:
            await asyncio.sleep(1.0)
            instances = await place.list()
            failed = [i.id for i in instances if i.state == "failed"]
            for instance_id in failed:
                await place.stop(instance_id, grace=0.0)
            for _ in range(self._options.replicas - (len(instances) - len(failed))):
                await place.start(pool)

    async def _kill(self, place: SimulatedPlace) -> None:
        rng = Random(f"{self._options.seed}:kill")
        while True:
            await asyncio.sleep(rng.expovariate(1.0 / self._options.place.kill_every))
            place.kill_one()
