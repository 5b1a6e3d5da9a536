"""One look at one replica: is it ready, what does it serve, what has it to do."""

from msgspec.structs import replace

from headrace.core.stats import ReplicaState
from headrace.fleet.backends.values import Outgoing
from headrace.fleet.replica import Replica, Report
from headrace.fleet.upstream.failure import FailureKind, UpstreamError

#: Bytes that an answer to a probe may have.
MAX_BYTES = 4 * 1024 * 1024
#: Its models are asked for at every so many looks: they seldom change.
MODELS_EVERY = 10


class NotReadyError(Exception):
    """It answers, and says that it is not ready."""


async def probe(replica: Replica, patience: float, number: int) -> Report:
    """Ask a replica for the `number`-th time; `patience` is in seconds.

    Raises NotReadyError, or UpstreamError for one that does not answer.
    """
    backend = replica.backend
    report = replica.report or Report(state=ReplicaState.READY)
    if (outgoing := backend.health_probe()) is not None:
        health = backend.read_health(*await _ask(replica, outgoing, patience))
        if not health.is_ready:
            raise NotReadyError(health.reason or "it says so")
    if (outgoing := backend.load_probe()) is not None:
        load = backend.read_load(*await _ask(replica, outgoing, patience))
        report = replace(
            report,
            state=ReplicaState.DRAINING if load.is_draining else ReplicaState.READY,
            num_running=load.num_running,
            num_waiting=load.num_waiting,
            max_num_seqs=load.max_running,
            outstanding_tokens=load.outstanding_tokens,
            kv_usage=load.kv_usage,
            uptime=load.uptime,
            prefix_hit_rate=load.prefix_hit_rate,
            busy=load.busy,
        )
    if number % MODELS_EVERY == 0 and (outgoing := backend.models_probe()) is not None:
        cards = backend.read_models(*await _ask(replica, outgoing, patience))
        contexts = [card.max_context for card in cards if card.max_context]
        report = replace(
            report,
            models=tuple(card.id for card in cards),
            max_context=max(contexts, default=None),
        )
        if not cards and not replica.spec.models:
            raise UpstreamError(FailureKind.GARBAGE, "it names no model")
    return report


async def _ask(replica: Replica, outgoing: Outgoing, patience: float) -> tuple[int, bytes]:
    response = await replica.pool.request(
        outgoing.method, outgoing.path, outgoing.headers, outgoing.body, first_byte=patience
    )
    try:
        return response.status, await response.read_all(MAX_BYTES)
    finally:
        replica.pool.release(response)
