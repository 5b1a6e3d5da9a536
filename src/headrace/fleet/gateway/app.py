"""The gateway's ASGI application: what it passes on, and what it answers itself."""

import os

from starlette.exceptions import HTTPException
from starlette.routing import Match, Router

from headrace import __version__
from headrace.api.models import Health, Version
from headrace.config.fleet.root import FleetConfig
from headrace.core.clock import Clock
from headrace.core.errors import AuthenticationError, PermissionDeniedError
from headrace.fleet.gateway.accounts.account import ANONYMOUS, Account
from headrace.fleet.gateway.build import Parts
from headrace.fleet.gateway.documents import document_endpoints, front_endpoint
from headrace.fleet.gateway.endpoints import ENDPOINTS
from headrace.fleet.gateway.routes import model_card, model_list
from headrace.fleet.gateway.service import ACCOUNT, Service
from headrace.fleet.replica import Standing
from headrace.observe.genai_names import expose_genai
from headrace.observe.prometheus import CONTENT_TYPE, expose
from headrace.observe.system import SystemMeter, Watched
from headrace.web.asgi import App, Receive, Scope, Send, send_body, send_json
from headrace.web.endpoint import Access, Endpoint, Operation
from headrace.web.error_shapes import error_writer_of
from headrace.web.guard import Cors
from headrace.web.keys import KeyRing
from headrace.web.middleware import BodyLimit, ConnectionLimit, Observed, Problems
from headrace.web.tracing import Traced

#: Routes with keys of their own.
ADMIN = "/admin/"
METRICS = "/metrics"


def build_app(
    parts: Parts,
    admin: list[Endpoint],
    operators: KeyRing | None,
    config: FleetConfig,
    clock: Clock,
) -> App:
    """`operators` are the keys of the admin API, good for the metrics too.

    From the outside in: observed, bounded, errors as objects; the passed-on paths first, by a table.
    """
    service = parts.service
    routes = [*_routes(parts, clock), *parts.stored.endpoints(), *admin]
    routes += document_endpoints(service.answer, routes)
    routes.append(front_endpoint(has_operators=operators is not None))
    router = Router(routes, redirect_slashes=False)

    async def routed(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in ENDPOINTS and scope["method"] == "POST":
            await service.answer(scope, receive, send)
            return
        if scope["path"] in ENDPOINTS:
            raise HTTPException(405, headers={"Allow": "POST"})
        scope["app"] = routed  # makes the router raise for 404 and 405 instead of answering in text
        await router(scope, receive, send)

    def route_of(scope: Scope) -> str:
        path: str = scope["path"]
        if path in ENDPOINTS:
            return path
        return next((r.path for r in routes if r.matches(scope)[0] is not Match.NONE), "other")

    app: App = Guarded(routed, parts.service, open_paths(routes, config), operators)
    app = BodyLimit(app, config.gateway.max_body_bytes)
    app = ConnectionLimit(app, config.gateway.max_connections, lambda _: None)
    app = Problems(app, error_writer_of)
    if config.security.cors_origins:
        app = Cors(app, config.security.cors_origins)
    if parts.tracer is not None:
        app = Traced(app, parts.tracer, clock)
    return Observed(app, clock, parts.metrics, route_of)


def open_paths(routes: list[Endpoint], config: FleetConfig) -> frozenset[str]:
    """Paths that answer without a client's key; those of /admin have keys of their own."""
    open_to_all = {Access.OPEN}
    if config.security.open_metrics:
        open_to_all.add(Access.OPERATOR)
    return frozenset(r.path for r in routes if r.operation.access in open_to_all)


class Guarded:
    """Lets nothing through without a key, where there are keys, but what is named open."""

    def __init__(
        self, app: App, service: Service, open_paths: frozenset[str], operators: KeyRing | None
    ) -> None:
        self._app = app
        self._service = service
        self._open_paths = open_paths
        self._operators = operators

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        is_open = path in self._open_paths or path.startswith(ADMIN)
        if not (is_open or (path.startswith(METRICS) and self._is_operator(scope))):
            self._service.authenticate(scope)
            if path.startswith(METRICS):
                self._check_reader(scope[ACCOUNT])
        await self._app(scope, receive, send)

    def _check_reader(self, account: Account) -> None:
        """Where there are operators, the numbers of all tenants are for them. Raises PermissionDeniedError."""
        if self._operators is not None and account.key != ANONYMOUS:
            raise PermissionDeniedError(
                "The metrics show every tenant's numbers: send one of gateway.admin_keys, or set security.open_metrics."
            )

    def _is_operator(self, scope: Scope) -> bool:
        try:
            return self._operators is not None and bool(self._operators.authenticate(scope))
        except AuthenticationError:
            return False


def _routes(parts: Parts, clock: Clock) -> list[Endpoint]:
    system = SystemMeter(parts.metrics)

    async def livez(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send_json(send, Health(status="ok"))

    async def readyz(_scope: Scope, _receive: Receive, send: Send) -> None:
        now = clock.monotonic()
        serves = parts.registry.is_asleep or any(
            replica.standing(now) is Standing.READY for replica in parts.registry
        )
        if serves and not parts.service.is_draining:
            await send_json(send, Health(status="ok"))
        else:
            draining = parts.service.is_draining
            reason = "the gateway is shutting down" if draining else "no replica is ready"
            await send_json(send, Health(status="unready", reason=reason), status=503)

    async def exposed(_scope: Scope, _receive: Receive, send: Send) -> None:
        parts.admission.write_gauges()
        system.write([Watched("gateway", os.getpid())])
        if parts.tracer is not None:
            parts.tracer.exporter.write_counts(parts.metrics)
        parts.meter.write_gauges()
        parts.requests.write_gauges()
        parts.books.write_gauges()
        parts.knowledge.write_gauges(parts.metrics)
        await parts.service.cache.update_gauges()
        await send_body(send, expose(parts.metrics).encode(), content_type=CONTENT_TYPE)

    async def genai(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send_body(send, expose_genai(parts.metrics).encode(), content_type=CONTENT_TYPE)

    async def version(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send_json(send, Version(version=__version__))

    return [
        *_model_routes(parts),
        Endpoint("GET", "/livez", livez, _operation("The process lives.", Access.OPEN)),
        Endpoint("GET", "/readyz", readyz, _operation("A replica is ready.", Access.OPEN)),
        Endpoint("GET", "/health", readyz, _operation("A replica is ready.", Access.OPEN)),
        Endpoint("GET", METRICS, exposed, _operation("Prometheus' text.", Access.OPERATOR)),
        Endpoint(
            "GET",
            "/metrics/genai",
            genai,
            _operation("Metrics under OpenTelemetry's names.", Access.OPERATOR),
        ),
        Endpoint("GET", "/version", version, _operation("The version of this gateway.")),
    ]


def _model_routes(parts: Parts) -> list[Endpoint]:
    async def models(scope: Scope, _receive: Receive, send: Send) -> None:
        account: Account = scope[ACCOUNT]
        await send_json(send, model_list(parts.registry, parts.service.names(), account.may_use))

    async def one_model(scope: Scope, _receive: Receive, send: Send) -> None:
        account: Account = scope[ACCOUNT]
        listed = model_list(parts.registry, parts.service.names(), account.may_use)
        await send_json(send, model_card(listed, scope["path_params"]["name"]))

    return [
        Endpoint("GET", "/v1/models", models, _operation("Every model of every replica.")),
        Endpoint("GET", "/v1/models/{name:path}", one_model, _operation("One of them.")),
    ]


def _operation(summary: str, access: Access = Access.KEY) -> Operation:
    return Operation(summary=summary, tag="gateway", access=access)
