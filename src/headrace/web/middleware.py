"""Pure ASGI layers around every route: identity, timing, the access log, body bounds, error objects."""

import logging
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Final

from starlette.exceptions import HTTPException

from headrace.core.clock import Clock
from headrace.core.errors import BodyTooLargeError, ConnectionLimitError
from headrace.observe import catalogue
from headrace.observe.logs import one_line, request_id
from headrace.observe.metrics import Metrics
from headrace.web.asgi import App, Message, Receive, Scope, Send, header, send_body, send_problem
from headrace.web.guard import key_of
from headrace.web.problems import Answer, HttpError

#: What a client may name its request; anything else gets a name of ours.
_REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
#: Routes that a probe or scraper calls all day long: logged at debug, and never turned away.
_PROBES = frozenset(
    {"/livez", "/readyz", "/health", "/metrics", "/metrics/vllm", "/metrics/genai", "/load"}
)

#: Whether an answer has begun, in the scope of every request that is observed.
HAS_BEGUN: Final = "headrace.has_begun"

WriteError = Callable[[Answer], bytes]

log = logging.getLogger("headrace.access")


class Observed:
    """Names each request, times it, logs one line without its text, and counts it."""

    def __init__(
        self, app: App, clock: Clock, metrics: Metrics, route_of: Callable[[Scope], str]
    ) -> None:
        self._app = app
        self._clock = clock
        self._metrics = metrics
        self._route_of = route_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        name = header(scope, b"x-request-id") or ""
        if not _REQUEST_ID.fullmatch(name):
            name = secrets.token_hex(12)
        scope["headrace.request_id"] = name
        arrival = self._clock.monotonic()
        scope["headrace.arrival"] = arrival
        scope["headrace.headers"] = headers = [(b"x-request-id", name.encode())]
        status = 499  # the client left before an answer began

        async def observed_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                scope[HAS_BEGUN] = True
                message["headers"] = [*message["headers"], *headers]
            await send(message)

        token = request_id.set(name)
        try:
            await self._app(scope, receive, observed_send)
        finally:
            self._record(scope, scope.get("headrace.status", status), arrival)
            request_id.reset(token)

    def _record(self, scope: Scope, status: int, arrival: float) -> None:
        seconds = self._clock.monotonic() - arrival
        route = self._route_of(scope)
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.add(catalogue.HTTP_REQUESTS, (route, method, str(status)))
        self._metrics.histogram(catalogue.HTTP_DURATION, (route,)).observe(seconds)
        if (key := key_of(scope)) is not None:
            self._metrics.add(catalogue.KEY_REQUESTS, (key.name,))
        level = logging.DEBUG if route in _PROBES else logging.INFO
        if log.isEnabledFor(level):
            fields = {"status": status, "seconds": f"{seconds:.4f}", **_who(scope)}
            path = one_line(scope["path"][:200])
            log.log(level, "%s %s", method, path, extra={"fields": fields})


class Problems:
    """Exceptions become error objects, as long as no answer has begun; then the connection ends.

    Whether one has, the scope says: one frame less for each token than to listen.
    """

    def __init__(self, app: App, writer_of: Callable[[Scope], WriteError]) -> None:
        """`writer_of` tells how the API that was called writes an error."""
        self._app = app
        self._writer_of = writer_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except Exception as error:
            if scope.get(HAS_BEGUN, False):
                raise
            if isinstance(error, HTTPException):
                await _answer_router(error, scope, send, self._writer_of(scope))
            else:
                await send_problem(send, error, self._writer_of(scope))


async def _answer_router(error: HTTPException, scope: Scope, send: Send, write: WriteError) -> None:
    headers = dict(error.headers or {})
    if error.status_code == 405 and scope["method"] == "OPTIONS":
        allow = f"{headers.get('Allow', '')}, OPTIONS".removeprefix(", ")
        await send_body(send, b"", status=204, headers={"allow": allow})
        return
    path = one_line(scope["path"][:200])
    where = "; OpenAI's API is below /v1" if path == "/" else ""
    if error.status_code == 404:
        message = f"There is no '{path}' here{where}."
    elif error.status_code == 405:
        allowed = headers.get("Allow", "")
        message = f"'{path}' does not take {scope['method']}; it takes {allowed}{where}."
    else:
        message = error.detail
    await send_problem(send, HttpError(error.status_code, message, headers), write)


class ConnectionLimit:
    """Turns away requests on connections beyond the bound (`protocol.py` marks them), but for probes."""

    def __init__(self, app: App, max_connections: int, on_reject: Callable[[str], None]) -> None:
        self._app = app
        self._max_connections = max_connections
        self._on_reject = on_reject

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("headrace.is_surplus") and scope["path"] not in _PROBES:
            self._on_reject("connections")
            raise ConnectionLimitError(
                f"More than {self._max_connections} connections are open; try again later."
            )
        await self._app(scope, receive, send)


class BodyLimit:
    """Refuses bodies that are too large: at once when the client says so, else when it shows."""

    def __init__(self, app: App, max_bytes: int, own: Mapping[str, int] | None = None) -> None:
        """`own` are paths with a bound of their own, which they speak of themselves."""
        self._app = app
        self._max_bytes = max_bytes
        self._own = own or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        max_bytes = self._own.get(scope["path"], self._max_bytes)
        declared = header(scope, b"content-length")
        if declared is not None and declared.isdecimal() and int(declared) > max_bytes:
            raise _too_large(max_bytes)
        num_bytes = 0

        async def counted_receive() -> Message:
            nonlocal num_bytes
            message = await receive()
            if message["type"] == "http.request":
                num_bytes += len(message.get("body", b""))
                if num_bytes > max_bytes:
                    raise _too_large(max_bytes)
            return message

        await self._app(scope, counted_receive, send)


def _too_large(max_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"The body has more than {max_bytes} bytes.")


def _who(scope: Scope) -> dict[str, str]:
    client, key = scope.get("client"), key_of(scope)
    address = {"client": client[0]} if client else {}
    return address if key is None else {**address, "key": key.name}
