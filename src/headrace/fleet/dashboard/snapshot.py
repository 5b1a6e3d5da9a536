"""All that the page shows, at one moment, as one value."""

from msgspec import Struct

from headrace import __version__
from headrace.fleet.dashboard.feeds import MAX_ROWS, AlertView, DecisionView, Feeds, PoolView
from headrace.fleet.dashboard.requests import RequestPart
from headrace.fleet.dashboard.series import SeriesPart
from headrace.fleet.dashboard.tally import Sums
from headrace.fleet.dashboard.watch import Watch
from headrace.fleet.gateway.admin.shapes import ReplicaStatus, status_of
from headrace.fleet.gateway.flow.admission import Admission
from headrace.fleet.registry import Registry
from headrace.fleet.slo.values import SloReport

#: Tenants of one queue that are told: those with most waiting.
MAX_TENANTS = 20


class Look(Struct, frozen=True, kw_only=True):
    """What a page has already, so that it is told only what is new."""

    life: str = ""
    """The life of the gateway that the numbers belong to."""
    fine: int = 0
    coarse: int = 0
    requests: int = 0


class GatewayView(Struct, frozen=True, kw_only=True):
    """The gateway itself."""

    version: str
    life: str
    """Another one means: it has started again, and all numbers begin anew."""
    time: float
    """`Clock.wall`."""
    uptime: float
    is_draining: bool


class TenantWaiting(Struct, frozen=True, kw_only=True):
    """A tenant's part of a queue."""

    name: str
    requests: int
    longest: float
    """Seconds that its next request has waited."""


class QueueView(Struct, frozen=True, kw_only=True):
    """What waits of one class for one model."""

    model: str
    priority: str
    running: int
    """Of all classes of the model."""
    requests: int
    tokens: int
    longest: float | None
    """Seconds that the next request of some tenant has waited."""
    is_cold: bool
    """The model has no ready replica."""
    tenants: tuple[TenantWaiting, ...]


class Snapshot(Struct, frozen=True, kw_only=True):
    """One answer of `/admin/dashboard`."""

    gateway: GatewayView
    replicas: tuple[ReplicaStatus, ...]
    queues: tuple[QueueView, ...]
    tenants: tuple[Sums, ...]
    models: tuple[Sums, ...]
    pools: tuple[PoolView, ...]
    decisions: tuple[DecisionView, ...]
    """Newest first."""
    alerts: tuple[AlertView, ...]
    objectives: tuple[SloReport, ...]
    fine: SeriesPart
    """By the second."""
    coarse: SeriesPart
    """By ten."""
    requests: RequestPart


def take(
    look: Look,
    gateway: GatewayView,
    watch: Watch,
    registry: Registry,
    admission: Admission,
    feeds: Feeds,
    now: float,
) -> Snapshot:
    """What a page that has `look` needs now; `now` is `Clock.monotonic`."""
    if look.life != gateway.life:
        look = Look()
    return Snapshot(
        gateway=gateway,
        replicas=tuple(status_of(replica, now) for replica in registry),
        queues=queues_of(admission, now),
        tenants=tuple(watch.tenants.rows(now)),
        models=tuple(watch.models.rows(now)),
        pools=tuple(feeds.pools()[:MAX_ROWS]),
        decisions=tuple(feeds.decisions()[:MAX_ROWS]),
        alerts=tuple(feeds.alerts()[:MAX_ROWS]),
        objectives=tuple(feeds.objectives()[:MAX_ROWS]),
        fine=watch.fine.after(look.fine),
        coarse=watch.coarse.after(look.coarse),
        requests=watch.requests.after(look.requests),
    )


def queues_of(admission: Admission, now: float) -> tuple[QueueView, ...]:
    """Classes of models with something that waits, and one row for each model with something that runs."""
    found: list[QueueView] = []
    for model, lane in list(admission.lanes.items())[:MAX_ROWS]:
        if lane.is_idle:
            continue
        for name, queue in lane.classes.items():
            waiting = sorted(queue.waiting(), key=lambda one: -one[1])
            tenants = tuple(
                TenantWaiting(name=tenant, requests=count, longest=max(0.0, now - arrived))
                for tenant, count, arrived in waiting[:MAX_TENANTS]
            )
            longest = max((now - arrived for _, _, arrived in waiting), default=None)
            found.append(
                QueueView(
                    model=model,
                    priority=name,
                    running=lane.num_running,
                    requests=queue.load.num_requests,
                    tokens=queue.load.num_tokens,
                    longest=None if longest is None else max(0.0, longest),
                    is_cold=lane.cold_since is not None,
                    tenants=tenants,
                )
            )
    return tuple(found)


def view_of(life: str, *, wall: float, uptime: float, is_draining: bool) -> GatewayView:
    """The gateway as it is."""
    return GatewayView(
        version=__version__, life=life, time=wall, uptime=uptime, is_draining=is_draining
    )
