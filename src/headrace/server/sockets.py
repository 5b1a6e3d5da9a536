"""`/v1/chat/completions/ws`: chat completions over one WebSocket, several at a time.

    client  {"id": "a", "request": {…the body of a chat completion…}}
            {"id": "a", "cancel": true}
    server  {"id": "a", "chunk": {…}}       each event of the stream; `stream` is true unless it is given
            {"id": "a", "response": {…}}    the whole answer where `stream` is false
            {"id": "a", "error": {…}, "status": 429}
            {"id": "a", "done": true}       last for every id, whatever happened

Every request goes to the ordinary route. What a client does not read holds back what is made for it; when the
socket closes, its requests end.
"""

import asyncio
import secrets
from collections.abc import Callable, Collection
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from headrace.api.decode import decode
from headrace.api.depth import check_depth
from headrace.core.errors import (
    BadRequestError,
    OverloadedError,
    PermissionDeniedError,
    RequestCancelledError,
)
from headrace.server.inner import InnerRequest
from headrace.web.asgi import App, Message, Receive, Scope, Send, header
from headrace.web.keys import Key, KeyRing
from headrace.web.problems import HttpError, answer_to

PATH: Final = "/v1/chat/completions/ws"
#: Where every request goes.
ROUTE: Final = "/v1/chat/completions"
#: What a browser may offer: it cannot send headers. The key is a token of RFC 9110 then.
PROTOCOL: Final = "headrace.v1"
KEY_PROTOCOL: Final = "headrace.key."
_DATA: Final = b"data: "
_PROBLEM: Final = b'{"error":'


class SocketMessage(Struct, frozen=True, kw_only=True):
    """What a client says."""

    id: Annotated[str, Meta(min_length=1, max_length=128)]
    request: msgspec.Raw = msgspec.Raw()
    cancel: bool = False


class Sockets:
    """Takes sockets in: the path, the page they come from, and the key are right, or the handshake fails."""

    def __init__(
        self,
        inner: App,
        keys: KeyRing,
        *,
        origins: Collection[str],
        max_requests: int,
        max_depth: int,
    ) -> None:
        """`inner` answers requests; `origins` as for CORS; a socket has at most `max_requests` at once."""
        self._inner = inner
        self._keys = keys
        self._origins = frozenset(origins)
        self._max_requests = max_requests
        self._max_depth = max_depth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Part of ASGI."""
        if (await receive())["type"] != "websocket.connect":
            return
        try:
            if scope["path"] != PATH:
                raise HttpError(404, f"There is no socket here; it is at '{PATH}'.")
            self._check_origin(scope)
            key = self._key(scope)
        except Exception as error:  # noqa: BLE001 - answered
            await _refuse(send, error)
            return
        offered = PROTOCOL if PROTOCOL in scope.get("subprotocols", ()) else None
        await send({"type": "websocket.accept", "subprotocol": offered})
        socket = _Socket(
            self._inner, key, send, max_requests=self._max_requests, max_depth=self._max_depth
        )
        await socket.run(receive)

    def _check_origin(self, scope: Scope) -> None:
        """A page of another site may not speak for whoever looks at it."""
        origin = header(scope, b"origin")
        if origin is None or "*" in self._origins or origin in self._origins:
            return
        if origin.partition("://")[2] != header(scope, b"host"):
            raise PermissionDeniedError("Pages of this origin may not call; see --cors-origins.")

    def _key(self, scope: Scope) -> Key | None:
        if not self._keys.is_needed:
            return None
        for offered in scope.get("subprotocols", ()):
            if offered.startswith(KEY_PROTOCOL):
                found = self._keys.find(offered.removeprefix(KEY_PROTOCOL))
                if found is not None:
                    return found
        return self._keys.authenticate(scope)


class _Socket:
    """One connection."""

    def __init__(
        self, inner: App, key: Key | None, send: Send, *, max_requests: int, max_depth: int
    ) -> None:
        self._inner = inner
        self._key = key
        self._send = send
        self._max_requests = max_requests
        self._max_depth = max_depth
        self._name = secrets.token_hex(12)
        self._num_requests = 0
        self._requests: dict[str, InnerRequest] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, receive: Receive) -> None:
        """Until it closes; then nothing of it runs any more."""
        try:
            while (message := await receive())["type"] == "websocket.receive":
                await self._take(message)
        finally:
            tasks = tuple(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _take(self, message: Message) -> None:
        name: str | None = None
        try:
            data: bytes = message.get("bytes") or (message.get("text") or "").encode()
            check_depth(data, self._max_depth)
            said = decode(data, SocketMessage)
            name = said.id
            if said.cancel:
                if (request := self._requests.get(name)) is not None:
                    request.leave()
                return
            self._begin(name, said.request)
        except Exception as error:  # noqa: BLE001 - answered
            # One that is refused because its id is in use has not ended that id.
            await self._fail(name, error, is_last=name is not None and name not in self._requests)

    def _begin(self, name: str, request: msgspec.Raw) -> None:
        if not bytes(request):
            raise BadRequestError("'request' or 'cancel' is required.", param="request")
        if name in self._requests:
            raise BadRequestError(f"A request with the id '{name}' runs already.", param="id")
        if len(self._requests) >= self._max_requests:
            raise OverloadedError(
                f"{len(self._requests)} requests of this socket run already (max_socket_requests)."
            )
        fields = decode(bytes(request), dict[str, msgspec.Raw])
        fields.setdefault("stream", msgspec.Raw(b"true"))
        self._num_requests += 1
        made = InnerRequest(
            ROUTE, msgspec.json.encode(fields), self._key, name=f"{self._name}-{self._num_requests}"
        )
        task = asyncio.create_task(self._answer(name, made), name=f"socket {self._name}")
        self._requests[name] = made
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # a client that left while it was written to

    async def _answer(self, name: str, request: InnerRequest) -> None:
        reader = AnswerReader()

        async def deliver(message: Message) -> None:
            for word, data, status in reader.take(message):
                await self._say(name, word, data, status)

        try:
            await request.run(self._inner, deliver)
            if request.is_gone:
                raise RequestCancelledError("The request was cancelled.")
        except Exception as error:  # noqa: BLE001 - answered
            await self._fail(name, error, is_last=False)
        del self._requests[name]  # before the client hears that it may use the id again
        await self._say(name, b"done", b"true")

    async def _fail(self, name: str | None, error: Exception, *, is_last: bool) -> None:
        answer = answer_to(error)
        await self._say(name, b"error", msgspec.json.encode(answer.problem), answer.status)
        if is_last:
            await self._say(name, b"done", b"true")

    async def _say(self, name: str | None, word: bytes, data: bytes, status: int = 0) -> None:
        extra = b',"status":%d' % status if status else b""
        text = b'{"id":%s,"%s":%s%s}' % (msgspec.json.encode(name), word, data, extra)
        await self._send({"type": "websocket.send", "text": text.decode()})


#: What to call it, its JSON, and the status where it is an error.
_Said = tuple[bytes, bytes, int]


class AnswerReader:
    """ASGI messages of a chat completion → chunks, a response, or an error."""

    def __init__(self) -> None:
        self._status = 0
        self._is_stream = False
        self._whole = bytearray()

    def take(self, message: Message) -> list[_Said]:
        """What one message says."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            headers: dict[bytes, bytes] = dict(message["headers"])
            self._is_stream = headers.get(b"content-type", b"").startswith(b"text/event-stream")
            return []
        body: bytes = message.get("body", b"")
        if self._is_stream:
            return [said for line in body.split(b"\n") if (said := _event(line)) is not None]
        self._whole += body
        if message.get("more_body", False):
            return []
        whole = bytes(self._whole)
        if self._status == 200:
            return [(b"response", whole, 0)]
        return [(b"error", _problem(whole), self._status)]


def _event(line: bytes) -> _Said | None:
    if not line.startswith(_DATA) or line == b"data: [DONE]":
        return None
    data = line[len(_DATA) :]
    if data.startswith(_PROBLEM):
        return (b"error", _problem(data), 0)
    return (b"chunk", data, 0)


def _problem(body: bytes) -> bytes:
    """The object inside an error's body."""
    return bytes(msgspec.json.decode(body, type=dict[str, msgspec.Raw])["error"])


async def _refuse(send: Send, error: Exception) -> None:
    """An answer in HTTP, instead of a socket."""
    answer = answer_to(error)
    headers = [(b"content-type", b"application/json")]
    headers += [(k.encode("latin-1"), v.encode("latin-1")) for k, v in answer.headers.items()]
    await send(
        {"type": "websocket.http.response.start", "status": answer.status, "headers": headers}
    )
    await send({"type": "websocket.http.response.body", "body": answer.body})


def by_type(http: App, sockets: App) -> App:
    """Requests to one, sockets to the other."""

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await http(scope, receive, send)
        elif scope["type"] == "websocket":
            await sockets(scope, receive, send)

    return dispatch


def socket_protocol(**parts: Any) -> asyncio.Protocol:
    """The protocol of a WebSocket, uvicorn's own; its library is loaded when the first one comes."""
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

    make: Callable[..., asyncio.Protocol] = WebSocketsSansIOProtocol
    return make(**parts)
