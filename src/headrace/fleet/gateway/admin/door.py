"""The door of the admin API: routes under /admin that let operators in by keys of their own."""

from typing import Any, Final

from headrace.web.asgi import App, Receive, Scope, Send
from headrace.web.bodies import BodyBudget, read_body
from headrace.web.endpoint import Access, Endpoint, Operation
from headrace.web.keys import KeyRing

#: Bytes of all bodies that operators send at a time.
MAX_BODY_BYTES: Final = 1024 * 1024


class Door:
    """One gateway's."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys
        self._bodies = BodyBudget(MAX_BODY_BYTES)

    def endpoint(
        self, method: str, path: str, app: App, summary: str, **operation: Any
    ) -> Endpoint:
        """A route behind the keys; `path` is behind /admin, `operation` are further fields of an `Operation`."""

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            self._keys.authenticate(scope)
            await app(scope, receive, send)

        described = Operation(summary=summary, tag="admin", access=Access.ADMIN, **operation)
        return Endpoint(method, f"/admin{path}", guarded, described)

    async def body(self, scope: Scope, receive: Receive) -> bytes | None:
        """What the operator sent; None if he has left."""
        with self._bodies.reserve(scope) as reservation:
            return await read_body(receive, reservation)
