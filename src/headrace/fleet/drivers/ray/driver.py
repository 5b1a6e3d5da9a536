"""The Ray driver. Ray's calls block, and are made in a thread; no token ever passes through them."""

from collections.abc import Mapping, Sequence

from headrace.config.fleet.drivers import RayConfig
from headrace.config.fleet.pools import PoolConfig
from headrace.core.clock import Clock
from headrace.fleet.drivers.blocking import OneAtATime
from headrace.fleet.drivers.protocol import Instance
from headrace.fleet.drivers.ray.cluster import Cluster


class RayDriver:
    """Implements `fleet.drivers.protocol.Driver`."""

    def __init__(self, fleet: str, config: RayConfig, clock: Clock) -> None:
        self._cluster = Cluster(fleet, config, clock)
        self._calls = OneAtATime(f"Ray at {config.address}", config.timeout)

    async def list(self) -> Sequence[Instance]:
        """From the cluster's tables, and from the supervisors."""
        return await self._calls.do(self._cluster.list)

    async def start(self, pool: PoolConfig, *, prestarted: bool = False) -> Instance:
        """PENDING until a node has room and its actor says where the server is; pre-started ones are parked."""
        return await self._calls.do(lambda: self._cluster.start(pool, parked=prestarted))

    async def stop(self, instance_id: str, *, grace: float) -> None:
        """Its supervisor tells the server to end, and kills it after `grace` seconds."""
        await self._calls.do(lambda: self._cluster.stop(instance_id, max(0.0, grace)))

    async def describe(self, instance_id: str) -> Mapping[str, str] | None:
        """Node, pid, address, the end of its log."""
        return await self._calls.do(lambda: self._cluster.describe(instance_id))

    async def close(self) -> None:
        """Replicas run on; so does the connection, which others of this process may use."""
