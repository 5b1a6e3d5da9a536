"""The edge to replicas that are warm: asked for their state, woken, parked."""

import asyncio
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from headrace.config.fleet.pools import PoolConfig
from headrace.config.fleet.replicas import Dialect
from headrace.core.errors import DriverError
from headrace.core.stats import ReplicaState
from headrace.fleet import control
from headrace.fleet.autoscaler.names import configured_names
from headrace.fleet.backends.values import Outgoing
from headrace.fleet.replica import Replica
from headrace.fleet.upstream.failure import UpstreamError

#: Seconds for its state.
STATE_PATIENCE: Final = 1.0
_MAX_BYTES: Final = 1024 * 1024


class Warmth(Protocol):
    """What warm replicas are asked."""

    async def state(self, replica: Replica) -> ReplicaState | None:
        """Its own word; None: it does not say."""
        ...

    async def wake(self, replica: Replica, pool: PoolConfig) -> None:
        """Have it serve its pool's model, loaded and parked or not loaded yet. Raises DriverError if it will not."""
        ...

    async def park(self, replica: Replica) -> None:
        """Have it give its memory back, and keep its process. Raises DriverError if it will not."""
        ...


class HttpWarmth:
    """headrace's own servers: `/load` tells the state, `/control` takes orders from who has the control token."""

    async def state(self, replica: Replica) -> ReplicaState | None:
        """Part of Warmth. One that does not answer says nothing."""
        outgoing = replica.backend.load_probe()
        if outgoing is None or replica.spec.dialect is not Dialect.HEADRACE:
            return None
        try:
            status, body = await _ask(replica, outgoing)
            return msgspec.json.decode(body, type=_State).state if status == 200 else None
        except (UpstreamError, TimeoutError, msgspec.MsgspecError):
            return None

    async def wake(self, replica: Replica, pool: PoolConfig) -> None:
        """Part of Warmth."""
        token = _token(replica)
        if await self.state(replica) is ReplicaState.EMPTY:
            await control.load(replica.pool, token, pool.model, names=configured_names(pool))
        else:
            await control.unpark(replica.pool, token)

    async def park(self, replica: Replica) -> None:
        """Part of Warmth. It has drained already."""
        await control.park(replica.pool, _token(replica), grace=0.0)


def _token(replica: Replica) -> str:
    token = replica.spec.control_token
    if token is None:
        raise DriverError("Its control token is not known.")
    return str(token)


async def _ask(replica: Replica, outgoing: Outgoing) -> tuple[int, bytes]:
    """Raises UpstreamError, TimeoutError."""
    async with asyncio.timeout(STATE_PATIENCE):
        response = await replica.pool.request(
            outgoing.method,
            outgoing.path,
            outgoing.headers,
            outgoing.body,
            first_byte=STATE_PATIENCE,
        )
        try:
            return response.status, await response.read_all(_MAX_BYTES)
        finally:
            replica.pool.release(response)


class _State(Struct):
    """What of `/load` is read; other fields may come."""

    state: ReplicaState
