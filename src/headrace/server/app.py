"""The ASGI application: routes inside their layers."""

from starlette.routing import Match, Route, Router

from headrace.server.asgi import App, Receive, Scope, Send
from headrace.server.middleware import BodyLimit, ConnectionLimit, Observed, Problems
from headrace.server.replica import Replica
from headrace.server.routes import chat, completions, models, ops


def build_routes(replica: Replica) -> list[Route]:
    """Every route there is. All are open; what only a trusted peer may use is a matter of fields (`auth`)."""
    return [
        _post("/v1/chat/completions", chat.create(replica)),
        _post("/v1/completions", completions.create(replica)),
        _get("/v1/models", models.list_models(replica)),
        _get("/v1/models/{name:path}", models.one_model(replica)),
        _get("/livez", ops.livez()),
        _get("/readyz", ops.readyz(replica)),
        _get("/health", ops.readyz(replica)),
        _get("/metrics", ops.metrics(replica)),
        _get("/metrics/vllm", ops.metrics_vllm(replica)),
        _get("/load", ops.load(replica)),
        _get("/version", ops.version()),
    ]


def build_app(replica: Replica) -> App:
    """From the outside in: observed, errors as objects, bounded connections and bodies, routes."""
    routes = build_routes(replica)
    router = Router(routes, redirect_slashes=False)

    async def routed(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = routed  # makes the router raise for 404 and 405 instead of answering in text
        await router(scope, receive, send)

    def route_of(scope: Scope) -> str:
        # The pattern, not the path: labels must not grow with what clients type.
        for route in routes:
            if route.matches(scope)[0] is not Match.NONE:
                return route.path
        return "other"

    app: App = BodyLimit(routed, replica.config.max_body_bytes)
    app = ConnectionLimit(app, replica.config.max_connections, replica.note_rejection)
    return Observed(Problems(app), replica.clock, replica.metrics, route_of)


def _get(path: str, app: App) -> Route:
    return Route(path, _Endpoint(app), methods=["GET"])


def _post(path: str, app: App) -> Route:
    return Route(path, _Endpoint(app), methods=["POST"])


class _Endpoint:
    """An ASGI app as an object: Starlette takes plain functions for request-response handlers."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
