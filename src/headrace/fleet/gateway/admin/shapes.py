"""Shapes of the admin API."""

from msgspec import Struct

from headrace.fleet.replica import Replica


class ReplicaStatus(Struct, frozen=True, kw_only=True):
    """One replica as the gateway sees it."""

    id: str
    url: str
    dialect: str
    role: str
    version: str
    models: tuple[str, ...]
    standing: str
    """ready, unknown, unready, ejected or draining."""
    reason: str
    """Why it is not ready."""
    circuit: str
    num_requests: int
    """That it has of this gateway."""
    max_requests: int
    prefill_tokens: int
    decode_tokens: int
    ttft: float | None
    """Seconds, moving average."""
    tpot: float | None
    num_running: int | None
    """As it told at the last probe."""
    num_waiting: int | None
    kv_usage: float | None
    max_context: int | None
    state: str | None
    """Its own word: loading, ready, draining, parked, …"""
    prefix_hit_rate: float | None
    """Cached share of its prompt tokens of the last minute."""
    uptime: float | None
    """Seconds."""
    labels: dict[str, str]


class FleetStatus(Struct, frozen=True, kw_only=True):
    """All replicas."""

    replicas: tuple[ReplicaStatus, ...]


class Done(Struct, frozen=True, kw_only=True):
    """A change was made."""

    message: str


def status_of(replica: Replica, now: float) -> ReplicaStatus:
    """`now` is `Clock.monotonic`."""
    spec, report = replica.spec, replica.report
    if replica.ready_since is None:
        report = None  # what it told before it died says nothing of now
    return ReplicaStatus(
        id=replica.id,
        url=spec.url,
        dialect=str(spec.dialect),
        role=str(spec.role),
        version=spec.version,
        models=replica.models,
        standing=str(replica.standing(now)),
        reason=replica.reason,
        circuit=str(replica.breaker.state(now)),
        num_requests=replica.load.num_requests,
        max_requests=replica.max_requests,
        prefill_tokens=replica.load.prefill_tokens,
        decode_tokens=replica.load.decode_tokens,
        ttft=replica.latency.ttft,
        tpot=replica.latency.tpot,
        num_running=report.num_running if report else None,
        num_waiting=report.num_waiting if report else None,
        kv_usage=report.kv_usage if report else None,
        max_context=replica.max_context,
        state=str(report.state) if report else None,
        prefix_hit_rate=report.prefix_hit_rate if report else None,
        uptime=report.uptime if report else None,
        labels=spec.labels,
    )
