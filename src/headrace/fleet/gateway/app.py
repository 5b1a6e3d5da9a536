"""The gateway's ASGI application: what it passes on, and what it answers itself."""

from starlette.routing import Match, Router

from headrace import __version__
from headrace.api.models import Health, Version
from headrace.config.fleet.root import FleetConfig
from headrace.core.clock import Clock
from headrace.fleet.gateway.endpoints import ENDPOINTS
from headrace.fleet.gateway.routes import model_list
from headrace.fleet.gateway.service import Service
from headrace.fleet.replica import Standing
from headrace.observe.metrics import Metrics
from headrace.observe.prometheus import CONTENT_TYPE, expose
from headrace.web.asgi import App, Receive, Scope, Send, send_body, send_json
from headrace.web.endpoint import Access, Endpoint, Operation
from headrace.web.middleware import BodyLimit, ConnectionLimit, Observed, Problems


def build_app(
    service: Service, admin: list[Endpoint], config: FleetConfig, metrics: Metrics, clock: Clock
) -> App:
    """From the outside in: observed, bounded, errors as objects; the passed-on paths first, by a table."""
    routes = [*_routes(service, metrics, clock), *admin]
    router = Router(routes, redirect_slashes=False)

    async def routed(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in ENDPOINTS and scope["method"] == "POST":
            await service.answer(scope, receive, send)
            return
        scope["app"] = routed  # makes the router raise for 404 and 405 instead of answering in text
        await router(scope, receive, send)

    def route_of(scope: Scope) -> str:
        path: str = scope["path"]
        if path in ENDPOINTS:
            return path
        return next((r.path for r in routes if r.matches(scope)[0] is not Match.NONE), "other")

    app: App = BodyLimit(routed, config.gateway.max_body_bytes)
    app = ConnectionLimit(app, config.gateway.max_connections, lambda _: None)
    app = Problems(app, lambda _: lambda answer: answer.body)
    return Observed(app, clock, metrics, route_of)


def _routes(service: Service, metrics: Metrics, clock: Clock) -> list[Endpoint]:
    async def livez(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send_json(send, Health(status="ok"))

    async def readyz(_scope: Scope, _receive: Receive, send: Send) -> None:
        now = clock.monotonic()
        if not service.is_draining and any(
            replica.standing(now) is Standing.READY for replica in service.registry
        ):
            await send_json(send, Health(status="ok"))
        else:
            await send_json(
                send, Health(status="unready", reason="no replica is ready"), status=503
            )

    async def exposed(_scope: Scope, _receive: Receive, send: Send) -> None:
        service.admission.write_gauges()
        await send_body(send, expose(metrics).encode(), content_type=CONTENT_TYPE)

    async def version(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send_json(send, Version(version=__version__))

    async def models(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send_json(send, model_list(service.registry))

    def operation(summary: str, access: Access = Access.KEY) -> Operation:
        return Operation(summary=summary, tag="gateway", access=access)

    return [
        Endpoint("GET", "/v1/models", models, operation("Every model of every replica.")),
        Endpoint("GET", "/livez", livez, operation("The process lives.", Access.OPEN)),
        Endpoint("GET", "/readyz", readyz, operation("A replica is ready.", Access.OPEN)),
        Endpoint("GET", "/health", readyz, operation("A replica is ready.", Access.OPEN)),
        Endpoint("GET", "/metrics", exposed, operation("Prometheus' text.", Access.OPERATOR)),
        Endpoint("GET", "/version", version, operation("The version of this gateway.")),
    ]
