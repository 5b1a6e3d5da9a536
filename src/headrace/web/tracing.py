"""The layer that begins and ends traces of requests. It is there only where something is traced."""

from headrace.core.clock import Clock
from headrace.observe.tracing.tracer import Trace, Tracer
from headrace.web.asgi import App, Message, Receive, Scope, Send, header

#: Where a request's trace is found in its scope.
TRACE = "headrace.trace"


class Traced:
    """A span for each request that is posted; what is within adds its own. Stands inside of `Observed`."""

    def __init__(self, app: App, tracer: Tracer, clock: Clock) -> None:
        self._app = app
        self._tracer = tracer
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        trace = self._tracer.begin(header(scope, b"traceparent"), scope["headrace.arrival"])
        if trace is None:
            await self._app(scope, receive, send)
            return
        scope[TRACE] = trace
        status = 499

        async def noting_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        error = ""
        try:
            await self._app(scope, receive, noting_send)
        except BaseException as failure:
            error = type(failure).__name__
            raise
        finally:
            _end(trace, scope, scope.get("headrace.status", status), error, self._clock.monotonic())


def trace_of(scope: Scope) -> Trace | None:
    """The trace of a request; None where it is not traced."""
    found: Trace | None = scope.get(TRACE)
    return found


def _end(trace: Trace, scope: Scope, status: int, error: str, now: float) -> None:
    trace.name = trace.name or f"POST {scope['path'][:100]}"
    trace.attributes |= {
        "http.request.method": "POST",
        "url.path": scope["path"][:200],
        "http.response.status_code": status,
        "headrace.request_id": scope["headrace.request_id"],
    }
    trace.end(now, error=error or trace.failure or (str(status) if status >= 500 else ""))
