"""The edge to replicas that are warm: asked for their state, woken, parked."""

import asyncio
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

from headrace.config.fleet.replicas import Dialect
from headrace.core.errors import DriverError
from headrace.core.stats import ReplicaState
from headrace.fleet.replica import Replica
from headrace.fleet.upstream.failure import UpstreamError

CONTROL_HEADER: Final = "x-headrace-control"
#: Seconds for its state, and for an order: loading a model that is not in the cache takes a while.
STATE_PATIENCE: Final = 1.0
ORDER_PATIENCE: Final = 120.0
_MAX_BYTES: Final = 1024 * 1024


class Warmth(Protocol):
    """What warm replicas are asked."""

    async def state(self, replica: Replica) -> ReplicaState | None:
        """Its own word; None: it does not say."""
        ...

    async def wake(self, replica: Replica) -> None:
        """Have it serve its model, loaded and parked or not loaded yet. Raises DriverError if it will not."""
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
            status, body = await _ask(
                replica,
                outgoing.method,
                outgoing.path,
                dict(outgoing.headers),
                patience=STATE_PATIENCE,
            )
            return msgspec.json.decode(body, type=_State).state if status == 200 else None
        except (UpstreamError, TimeoutError, msgspec.MsgspecError):
            return None

    async def wake(self, replica: Replica) -> None:
        """Part of Warmth."""
        state = await self.state(replica)
        await self._order(replica, "load" if state is ReplicaState.EMPTY else "unpark")

    async def park(self, replica: Replica) -> None:
        """Part of Warmth. It has drained already."""
        await self._order(replica, "park", timeout=0.0)

    async def _order(self, replica: Replica, order: str, **fields: Any) -> None:
        token = replica.spec.control_token
        if token is None:
            raise DriverError("its control token is not known")
        headers = {CONTROL_HEADER: str(token), "content-type": "application/json"}
        body = msgspec.json.encode(fields)
        try:
            status, answer = await _ask(
                replica, "POST", f"/control/{order}", headers, body, patience=ORDER_PATIENCE
            )
        except (UpstreamError, TimeoutError) as error:
            raise DriverError(str(error) or "it does not answer") from None
        if status != 200:
            raise DriverError(f"status {status}: {answer[:200].decode(errors='replace')}")


async def _ask(
    replica: Replica,
    method: str,
    path: str,
    headers: dict[str, str],
    body: bytes = b"",
    *,
    patience: float,
) -> tuple[int, bytes]:
    """Raises UpstreamError, TimeoutError."""
    async with asyncio.timeout(patience):
        response = await replica.pool.request(method, path, headers, body, first_byte=patience)
        try:
            return response.status, await response.read_all(_MAX_BYTES)
        finally:
            replica.pool.release(response)


class _State(Struct):
    """What of `/load` is read; other fields may come."""

    state: ReplicaState
