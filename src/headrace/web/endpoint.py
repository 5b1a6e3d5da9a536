"""One route: its handler, who may call it, and what it takes and gives. The app and its documents are made of these."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct
from starlette.routing import Match, Route

from headrace.api.problems import ProblemBody
from headrace.web.asgi import JSON, App, Receive, Scope, Send


class Access(StrEnum):
    """Who may call a route when there are API keys."""

    KEY = "key"
    """Whoever has a key. What is not said to be otherwise is this."""
    OPERATOR = "operator"
    """Whoever has a key, or anyone if the operator has opened the metrics."""
    OPEN = "open"
    """Anyone: probes only."""
    CONTROL = "control"
    """Whoever has the control token, key or not: the route itself looks at it."""
    ADMIN = "admin"
    """Whoever has one of the operators' keys, which clients' keys are not: the route itself looks at it."""


class Operation(Struct, frozen=True, kw_only=True):
    """What a route does, for its readers."""

    summary: str
    tag: str
    """The group it belongs to."""
    description: str = ""
    request: Any = None
    """Type of its JSON body, if it takes one."""
    form: Mapping[str, Any] | None = None
    """JSON Schema of its multipart form, if it takes one instead."""
    query: Mapping[str, Mapping[str, Any]] = {}
    """JSON Schemas of its query's parameters; none is required."""
    response: Any = None
    """Type of its JSON answer; None where the answer is text."""
    content_type: str = JSON
    chunk: Any = None
    """Type of each event's data, if it can answer with a stream."""
    example: Mapping[str, Any] | None = None
    """A body that works with any model."""
    access: Access = Access.KEY
    error: Any = ProblemBody
    """Type of the body of its errors."""
    errors: tuple[int, ...] = ()
    """Statuses of its own, beside those that any route of its kind has."""


class Endpoint(Route):
    """Starlette's route with its operation."""

    def __init__(
        self, method: str, path: str, app: App, operation: Operation, *, id_prefix: str = ""
    ) -> None:
        """`id_prefix` is what the path's parameters begin with: others are not there."""
        super().__init__(path, _Handler(app), methods=[method])
        self.method: Final = method
        self.operation: Final = operation
        self._id_prefix = id_prefix

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Part of Route."""
        match, found = super().matches(scope)
        names = found.get("path_params", {}).values()
        if not all(str(name).startswith(self._id_prefix) for name in names):
            return Match.NONE, {}
        return match, found


class _Handler:
    """An ASGI app as an object: Starlette takes plain functions for request-response handlers."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
