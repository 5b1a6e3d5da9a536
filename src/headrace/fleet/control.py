"""Orders to a replica of ours: park, wake, load, unload, drain. By HTTP, for whoever has its control token."""

from collections.abc import Mapping
from enum import StrEnum

import msgspec
from msgspec import Struct

from headrace.core.errors import DriverError
from headrace.core.stats import ReplicaState
from headrace.fleet.upstream.failure import UpstreamError
from headrace.fleet.upstream.pool import Pool

CONTROL_HEADER = "x-headrace-control"
#: Bytes that an answer may have.
MAX_BYTES = 1024 * 1024
#: Seconds beyond those that requests get to end in; a load may have to fetch its model.
ANSWER_SECONDS = 30.0
LOAD_SECONDS = 600.0


class Order(StrEnum):
    """What a replica can be told; each is a path below /control."""

    PARK = "park"
    UNPARK = "unpark"
    DRAIN = "drain"
    LOAD = "load"
    UNLOAD = "unload"


class Outcome(Struct, frozen=True, kw_only=True):
    """What became of an order."""

    model: str = ""
    state: ReplicaState
    seconds: float = 0.0
    """That the replica took."""


async def park(pool: Pool, token: str, *, grace: float) -> Outcome:
    """It takes no new requests; those that run get `grace` seconds. Then it is parked. Raises DriverError."""
    return await _order(pool, token, Order.PARK, {"timeout": grace}, grace + ANSWER_SECONDS)


async def unpark(pool: Pool, token: str) -> Outcome:
    """It serves again, parked or drained. Raises DriverError."""
    return await _order(pool, token, Order.UNPARK, {}, ANSWER_SECONDS)


async def drain(pool: Pool, token: str, *, grace: float) -> Outcome:
    """It takes no new requests; answers when those that run have ended, or after `grace` seconds. Raises DriverError."""
    return await _order(pool, token, Order.DRAIN, {"timeout": grace}, grace + ANSWER_SECONDS)


async def load(
    pool: Pool,
    token: str,
    model: str,
    *,
    names: tuple[str, ...] = (),
    settings: Mapping[str, str | int | float | bool] | None = None,
    parked: bool = False,
    patience: float = LOAD_SECONDS,
) -> Outcome:
    """It serves this model, in the place of what it has. Raises DriverError with the reason where it cannot."""
    body = {
        "model": model,
        "served_model_name": names,
        "settings": dict(settings or {}),
        "parked": parked,
    }
    return await _order(pool, token, Order.LOAD, body, patience)


async def unload(pool: Pool, token: str, *, grace: float) -> Outcome:
    """It is a pre-started process again, without a model. Raises DriverError."""
    return await _order(pool, token, Order.UNLOAD, {"timeout": grace}, grace + ANSWER_SECONDS)


async def _order(
    pool: Pool, token: str, order: Order, body: Mapping[str, object], patience: float
) -> Outcome:
    headers = {"content-type": "application/json", CONTROL_HEADER: token}
    try:
        response = await pool.request(
            "POST",
            f"/control/{order}",
            headers,
            msgspec.json.encode(body),
            first_byte=patience,
        )
        try:
            status, said = response.status, await response.read_all(MAX_BYTES)
        finally:
            pool.release(response)
    except UpstreamError as failure:
        raise DriverError(f"The replica was not told to {order}: {failure}.") from failure
    if status != 200:
        raise DriverError(f"The replica does not {order} ({status}): {_reason(said)}")
    try:
        return msgspec.json.decode(said, type=Outcome)
    except msgspec.DecodeError as error:
        raise DriverError(f"The replica's answer to {order} cannot be read: {error}.") from None


def _reason(said: bytes) -> str:
    try:
        answer = msgspec.json.decode(said)
        return str(answer["error"]["message"])[:500]
    except (msgspec.DecodeError, KeyError, TypeError):
        return "it does not say why."
