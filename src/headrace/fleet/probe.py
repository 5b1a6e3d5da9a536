"""One look at one replica: is it ready, what does it serve, what has it to do."""

from typing import Any

import msgspec

from headrace.core.stats import LoadReport, ReplicaState
from headrace.fleet.replica import Replica, Report
from headrace.fleet.upstream.failure import FailureKind, UpstreamError

#: Bytes that an answer to a probe may have.
MAX_BYTES = 4 * 1024 * 1024


class NotReadyError(Exception):
    """It answers, and says that it is not ready."""


async def probe(replica: Replica, patience: float) -> Report:
    """Ask a replica. Raises NotReadyError, or UpstreamError for one that does not answer."""
    status, body = await _get(replica, "/readyz", patience)
    if status != 200:
        raise NotReadyError(_reason(body) or f"/readyz answers {status}")
    status, body = await _get(replica, "/load", patience)
    if status != 200:
        return Report(state=ReplicaState.READY)
    try:
        load = msgspec.json.decode(body, type=LoadReport)
    except msgspec.DecodeError as error:
        raise UpstreamError(FailureKind.GARBAGE, f"/load: {error}") from None
    return Report(
        state=load.state,
        models=load.models,
        num_running=load.num_running,
        num_waiting=load.num_waiting,
        max_num_seqs=load.max_num_seqs,
        outstanding_tokens=load.outstanding_tokens,
        kv_usage=load.kv_usage,
        prefix_hit_rate=load.prefix_hit_rate,
        version=load.version,
    )


async def _get(replica: Replica, path: str, patience: float) -> tuple[int, bytes]:
    headers = {"accept": "*/*"}
    if replica.spec.api_key is not None:
        headers["authorization"] = f"Bearer {replica.spec.api_key!s}"
    response = await replica.pool.request("GET", path, headers, first_byte=patience)
    try:
        return response.status, await response.read_all(MAX_BYTES)
    finally:
        replica.pool.release(response)


def _reason(body: bytes) -> str:
    try:
        found: Any = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return ""
    reason = found.get("reason") if isinstance(found, dict) else None
    return str(reason)[:200] if reason else ""
