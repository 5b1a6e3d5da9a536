"""The ASGI application: routes inside their layers."""

from starlette.routing import Match, Router

from headrace.config.server import ServerConfig
from headrace.server.auth import OwnedByPeers
from headrace.server.replica import Replica
from headrace.server.routes import (
    abort,
    adapters,
    batches,
    chat,
    completions,
    control,
    embeddings,
    files,
    llama,
    messages,
    models,
    ops,
    responses,
    stored_responses,
    streams,
    text,
    timeline,
)
from headrace.server.sockets import Sockets, by_type
from headrace.web import operations
from headrace.web.asgi import App, Receive, Scope, Send
from headrace.web.documents import OPENAPI, PAGE, Documents
from headrace.web.endpoint import Access, Endpoint
from headrace.web.error_shapes import error_writer_of
from headrace.web.guard import Cors, Guard
from headrace.web.middleware import BodyLimit, ConnectionLimit, Observed, Problems
from headrace.web.operations import BY_PATH
from headrace.web.tracing import Traced

ABOUT = "OpenAI's API, with what vLLM's, SGLang's and llama.cpp's clients expect beside it."
#: What a form may have beside its file.
FORM_BYTES = 64 * 1024


def build_routes(replica: Replica) -> list[Endpoint]:
    """Every route there is. Each needs a key, where there are keys, unless its operation says otherwise."""
    documents = Documents(lambda: routes, ABOUT)
    routes = [
        *_shared(replica),
        *stored_responses.endpoints(replica),
        Endpoint("POST", "/completion", llama.completion(replica), llama.COMPLETION),
        Endpoint("GET", "/slots", llama.slots(replica), llama.SLOTS),
        Endpoint("GET", "/tokenizer_info", text.tokenizer_info(replica), text.TOKENIZER_INFO),
        Endpoint("GET", "/props", text.props(replica), text.PROPS),
        Endpoint("POST", "/v1/abort", abort.abort(replica, must_exist=True), abort.ABORT),
        Endpoint("POST", "/abort_request", abort.abort(replica, must_exist=False), abort.DIALECT),
        Endpoint("POST", "/abort_requests", abort.abort(replica, must_exist=False), abort.DIALECT),
        Endpoint("GET", "/v1/streams/{stream_id}", streams.resume_stream(replica), streams.RESUME),
        Endpoint("POST", "/v1/files", files.create(replica), files.CREATE),
        Endpoint("GET", "/v1/files", files.list_files(replica), files.LIST),
        Endpoint("GET", "/v1/files/{file_id}", files.one_file(replica), files.ONE),
        Endpoint("DELETE", "/v1/files/{file_id}", files.delete_file(replica), files.DELETE),
        Endpoint("GET", "/v1/files/{file_id}/content", files.content(replica), files.CONTENT),
        Endpoint("POST", "/v1/batches", batches.create(replica), batches.CREATE),
        Endpoint("GET", "/v1/batches", batches.list_batches(replica), batches.LIST),
        Endpoint("GET", "/v1/batches/{batch_id}", batches.one_batch(replica), batches.ONE),
        Endpoint("POST", "/v1/batches/{batch_id}/cancel", batches.cancel(replica), batches.CANCEL),
        *adapters.endpoints(replica),
        *control.endpoints(replica),
        Endpoint("GET", "/models", models.list_models(replica), models.LIST),
        Endpoint("GET", "/v1/models", models.list_models(replica), models.LIST),
        Endpoint("GET", "/v1/models/{name:path}", models.one_model(replica), models.ONE),
        Endpoint("GET", "/livez", ops.livez(), ops.LIVEZ),
        Endpoint("GET", "/readyz", ops.readyz(replica), ops.READYZ),
        Endpoint("GET", "/health", ops.readyz(replica), ops.READYZ),
        *ops.metrics_pages(replica),
        Endpoint("GET", "/load", ops.load(replica), ops.LOAD),
        Endpoint("GET", "/timeline", timeline.timeline(replica), timeline.TIMELINE),
        Endpoint("GET", "/version", ops.version(), ops.VERSION),
        Endpoint("GET", "/openapi.json", documents.openapi(), OPENAPI),
        Endpoint("GET", "/docs", documents.page(), PAGE),
    ]
    return routes


def _shared(replica: Replica) -> list[Endpoint]:
    """What gateways pass on, and other names of it."""
    chats, counts = chat.create(replica), text.input_tokens(replica)
    made, rerank = responses.create(replica), embeddings.rerank(replica)
    score = embeddings.score(replica)
    handlers = {
        "/v1/chat/completions": chats,
        "/v1/completions": completions.create(replica),
        "/v1/chat/completions/input_tokens": counts,
        "/v1/responses": made,
        "/v1/responses/input_tokens": responses.count(replica),
        "/v1/messages": messages.create(replica),
        "/v1/messages/count_tokens": messages.count(replica),
        "/v1/embeddings": embeddings.embed(replica),
        "/v1/score": score,
        "/score": score,
        "/v1/rerank": rerank,
        "/v2/rerank": rerank,
        "/rerank": rerank,
        "/tokenize": text.tokenize(replica),
        "/detokenize": text.detokenize(replica),
        "/apply-template": text.apply_template(replica),
    }
    return [
        *(Endpoint("POST", path, app, BY_PATH[path]) for path, app in handlers.items()),
        Endpoint("POST", "/chat/completions", chats, operations.CHAT),
        Endpoint("POST", "/chat/completions/input_tokens", counts, operations.COUNT_CHAT),
        Endpoint("POST", "/responses", made, operations.RESPOND),
    ]


def open_paths(routes: list[Endpoint], config: ServerConfig) -> frozenset[str]:
    """Paths that answer without a key."""
    open_to_all = {Access.OPEN, Access.CONTROL}
    if config.security.open_metrics:
        open_to_all.add(Access.OPERATOR)
    return frozenset(r.path for r in routes if r.operation.access in open_to_all)


class _Routed:
    """The routes and what counts for all of them."""

    def __init__(self, replica: Replica) -> None:
        self.routes = build_routes(replica)
        self._router = Router(self.routes, redirect_slashes=False)
        self._replica = replica

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # makes the router raise for 404 and 405 instead of answering in text
        await self._router(scope, receive, send)

    def observed(self, app: App) -> App:
        """The same, named, timed, logged and counted."""
        replica = self._replica
        if replica.tracer is not None:
            app = Traced(app, replica.tracer, replica.clock)
        return Observed(app, replica.clock, replica.metrics, self._route_of)

    def _route_of(self, scope: Scope) -> str:
        # The pattern, not the path: labels must not grow with what clients type.
        for route in self.routes:
            if route.matches(scope)[0] is not Match.NONE:
                return route.path
        return "other"


def build_inner(replica: Replica) -> App:
    """What answers requests that are made in this process (`inner.py`): the routes, below the keys."""
    routed = _Routed(replica)
    return routed.observed(Problems(routed, error_writer_of))


def build_app(replica: Replica) -> App:
    """From the outside in: observed, CORS, errors as objects, bounded connections, keys, bodies, routes."""
    routed = _Routed(replica)
    routes = routed.routes
    config = replica.config
    inner = routed.observed(Problems(routed, error_writer_of))
    if replica.batches is not None:
        replica.batches.bind(inner, frozenset(route.path for route in routes))
    upload = config.batches.max_file_bytes + FORM_BYTES
    app: App = OwnedByPeers(routed, config.trusted_peer_token)
    app = BodyLimit(app, config.max_body_bytes, {"/v1/files": upload})
    app = Guard(app, replica.keys, open_paths(routes, config))
    app = ConnectionLimit(app, config.max_connections, replica.note_rejection)
    app = Problems(app, error_writer_of)
    if config.security.cors_origins:
        app = Cors(app, config.security.cors_origins)
    sockets = Sockets(
        inner,
        replica.keys,
        origins=config.security.cors_origins,
        max_requests=config.max_socket_requests,
        max_depth=config.max_json_depth,
    )
    return by_type(routed.observed(app), sockets)
