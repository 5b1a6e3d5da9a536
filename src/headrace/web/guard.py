"""Two layers that decide by the request's head alone: has it a key, and may a browser's page see the answer."""

from collections.abc import Collection

from headrace.web.asgi import App, Message, Receive, Scope, Send, header, send_body
from headrace.web.keys import Key, KeyRing

KEY = "headrace.key"
#: Whose a request is, where its key alone does not say so.
OWNER = "headrace.owner"
#: What a page's script may read of an answer.
_EXPOSED = "x-request-id, retry-after, x-headrace-ignored-fields, x-headrace-cold-start"
_METHODS = "GET, POST, DELETE, OPTIONS"
#: Seconds that a browser may remember the answer to a preflight.
_MAX_AGE = "600"


class Guard:
    """Lets nothing through without a key but what is named open: also no path that does not exist."""

    def __init__(self, app: App, keys: KeyRing, open_paths: Collection[str]) -> None:
        self._app = app
        self._keys = keys
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._keys.is_needed and scope["path"] not in self._open_paths:
            scope[KEY] = self._keys.authenticate(scope)
        await self._app(scope, receive, send)


def key_of(scope: Scope) -> Key | None:
    """The key that a request came with; None where none was needed."""
    key: Key | None = scope.get(KEY)
    return key


def owner_of(scope: Scope) -> bytes:
    """Whose a request is: whom a trusted gateway asks for, or else the digest of its API key, empty where none is needed."""
    owner: bytes | None = scope.get(OWNER)
    if owner is not None:
        return owner
    key = key_of(scope)
    return b"" if key is None else key.digest


class Cors:
    """Tells browsers which pages may call (https://fetch.spec.whatwg.org, "CORS protocol").

    Keys are sent by scripts and never by the browser itself, so credentials are not allowed and any header is.
    """

    def __init__(self, app: App, origins: Collection[str]) -> None:
        self._app = app
        self._any = "*" in origins
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = header(scope, b"origin")
        if origin is None or not (self._any or origin in self._origins):
            await self._app(scope, receive, send)
            return
        allow = "*" if self._any else origin
        wanted = header(scope, b"access-control-request-method")
        if scope["method"] == "OPTIONS" and wanted is not None:
            await self._preflight(scope, send, allow)
            return
        headers = [
            (b"access-control-allow-origin", allow.encode("latin-1")),
            (b"access-control-expose-headers", _EXPOSED.encode()),
            (b"vary", b"Origin"),
        ]

        async def allowing_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *headers]
            await send(message)

        await self._app(scope, receive, allowing_send)

    async def _preflight(self, scope: Scope, send: Send, allow: str) -> None:
        headers = {
            "access-control-allow-origin": allow,
            "access-control-allow-methods": _METHODS,
            "access-control-allow-headers": header(scope, b"access-control-request-headers") or "*",
            "access-control-max-age": _MAX_AGE,
            "vary": "Origin, Access-Control-Request-Headers",
        }
        await send_body(send, b"", status=204, headers=headers)
