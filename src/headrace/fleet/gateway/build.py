"""The gateway's composition root: the one module that knows every part of it."""

from functools import partial
from pathlib import Path
from typing import NamedTuple

from headrace.config.fleet.gateway import GatewayConfig
from headrace.config.fleet.replicas import ReplicaSpec
from headrace.config.fleet.root import FleetConfig
from headrace.core.clock import Clock
from headrace.fleet.backends.registry import backend_for
from headrace.fleet.cache.build import open_cache
from headrace.fleet.cache.versions import Versions
from headrace.fleet.gateway.accounts.build import Books
from headrace.fleet.gateway.dispatch import Dispatcher
from headrace.fleet.gateway.flow.admission import Admission
from headrace.fleet.gateway.models.canary import Canaries
from headrace.fleet.gateway.models.labels import ModelLabels, configured_names
from headrace.fleet.gateway.pipelines.runner import Pipelines
from headrace.fleet.gateway.prefix.knowledge import Knowledge
from headrace.fleet.gateway.pulse import Pulse
from headrace.fleet.gateway.replica_meter import ReplicaMeter
from headrace.fleet.gateway.request_meter import Listener, RequestMeter, nobody
from headrace.fleet.gateway.responses.homes import Homes
from headrace.fleet.gateway.responses.keepers import Keepers
from headrace.fleet.gateway.responses.routes import StoredResponses
from headrace.fleet.gateway.router import Router
from headrace.fleet.gateway.routing.choose import choose
from headrace.fleet.gateway.service import Service
from headrace.fleet.gateway.shadow import Shadows
from headrace.fleet.gateway.tools.toolbox import Toolbox
from headrace.fleet.gateway.trade import Trade
from headrace.fleet.probe import probe
from headrace.fleet.prober import Prober
from headrace.fleet.registry import Registry
from headrace.fleet.replica import Replica
from headrace.fleet.slo.watch import SloWatch
from headrace.fleet.upstream.pool import Pool, address_of
from headrace.observe.metrics import Metrics
from headrace.observe.tracing.otlp import open_tracer
from headrace.observe.tracing.tracer import Tracer


class Parts(NamedTuple):
    """A gateway, put together."""

    metrics: Metrics
    tracer: Tracer | None
    requests: RequestMeter
    slos: SloWatch
    registry: Registry
    prober: Prober
    router: Router
    meter: ReplicaMeter
    admission: Admission
    shadows: Shadows
    service: Service
    books: Books
    toolbox: Toolbox
    knowledge: Knowledge
    stored: StoredResponses
    pulse: Pulse
    canaries: Canaries


def build(
    config: FleetConfig, clock: Clock, on_ended: Listener = nobody, slo_file: Path | None = None
) -> Parts:
    """Call it on the event loop that it will run on. `slo_file` keeps what objectives counted. Raises ConfigError."""
    metrics = Metrics()
    tracer = open_tracer(config.tracing, "headrace-gateway", clock)

    def make(spec: ReplicaSpec) -> Replica:
        return make_replica(router.config, spec)

    registry = Registry(config.health, clock, make)
    knowledge = Knowledge(config.routing, registry, clock)
    router = Router(registry, config, clock, choose, knowledge)
    prober = Prober(registry, clock, probe)
    prober.on_restart = lambda replica: knowledge.index.restarted(replica.id)
    meter = ReplicaMeter(registry, metrics, clock)
    slos = SloWatch(config.slos, config.alerts, metrics, clock, slo_file)
    labels = ModelLabels(
        lambda: (*registry.models(), *configured_names(router.config.models))
    ).label
    requests = RequestMeter(metrics, slos.book, clock, on_ended, labels)
    pulse = Pulse()
    dispatcher = Dispatcher(router, prober, meter, config.gateway, clock, requests.pace, pulse)
    admission = Admission(
        config.flow, clock, router.free_in_lane, metrics=metrics, model_label=labels
    )
    books = Books(config, clock, metrics, labels)
    toolbox = Toolbox(config.tools, metrics, clock)
    pipelines = Pipelines(config.pipelines, metrics, clock)
    homes, keepers = _memory(config.gateway, registry, clock)
    canaries = Canaries(config.models)
    shadows = Shadows(dispatcher, admission, metrics, clock)
    trade = Trade(
        config=config,
        registry=registry,
        dispatcher=dispatcher,
        admission=admission,
        accounts=books.accounts,
        ledger=books.ledger,
        canaries=canaries,
        homes=homes,
        requests=requests,
        shadows=shadows,
        clock=clock,
    )
    service = Service(
        trade,
        open_cache(config.cache, clock, metrics, labels, Versions(registry).of),
        toolbox,
        pipelines,
        keepers,
    )

    registry.on_change = partial(_note_change, prober, router, admission)
    stored = StoredResponses(keepers, homes, books.accounts, config.gateway.max_response_bytes)
    return Parts(
        metrics, tracer, requests, slos, registry, prober, router, meter, admission, shadows, service, books, toolbox,
        knowledge, stored, pulse, canaries,
    )  # fmt: skip


def _memory(gateway: GatewayConfig, registry: Registry, clock: Clock) -> tuple[Homes, Keepers]:
    """Of where responses live, and who finds out where it fails."""
    homes = Homes(
        clock, max_responses=gateway.max_stored_responses, ttl=gateway.stored_response_ttl
    )
    return homes, Keepers(registry, homes, gateway.max_response_bytes)


def _note_change(prober: Prober, router: Router, admission: Admission) -> None:
    """A replica came, went, or may serve again."""
    prober.sync()
    router.note_change()
    admission.wake()


def make_replica(config: FleetConfig, spec: ReplicaSpec) -> Replica:
    """A replica with its connections and its dialect. Raises ConfigError."""
    gateway = config.gateway
    pool = Pool(
        address_of(spec.url),
        gateway.timeouts,
        max_idle=gateway.max_idle_connections,
        max_buffer=gateway.max_stream_buffer,
    )
    return Replica(spec, backend_for(spec), pool, config.health)
