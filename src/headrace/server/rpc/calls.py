"""The methods of the service, each a request to an ordinary route."""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import grpc
import msgspec
from google.protobuf.message import DecodeError

from headrace.core.errors import BadRequestError, OverloadedError, RequestCancelledError
from headrace.server.inner import InnerRequest
from headrace.server.rpc.answer import CallAnswer, abort
from headrace.server.rpc.schema import SERVICE, Schema
from headrace.server.rpc.translate import body_of
from headrace.web.asgi import App
from headrace.web.keys import Key, KeyRing
from headrace.web.problems import answer_to


class Method(NamedTuple):
    """A method and where its calls go."""

    name: str
    path: str
    is_stream: bool = False
    verb: str = "POST"


METHODS: Final = (
    Method("Generate", "/v1/completions"),
    Method("GenerateStream", "/v1/completions", is_stream=True),
    Method("Chat", "/v1/chat/completions"),
    Method("ChatStream", "/v1/chat/completions", is_stream=True),
    Method("ListModels", "/v1/models", verb="GET"),
)


class Calls:
    """Answers calls, at most `max_calls` at once; a client may stop reading for `stall_timeout` seconds."""

    def __init__(self, inner: App, keys: KeyRing, *, max_calls: int, stall_timeout: float) -> None:
        """`inner` answers requests, below the layer that looks for keys."""
        self._inner = inner
        self._keys = keys
        self._max_calls = max_calls
        self._stall_timeout = stall_timeout
        self._num_calls = 0

    def handlers(self, schema: Schema) -> Any:
        """For `grpc.aio.Server.add_generic_rpc_handlers`. Messages are read here, so that garbage is ours to name."""
        return grpc.method_handlers_generic_handler(
            SERVICE, {method.name: self._handler(method, schema) for method in METHODS}
        )

    def _handler(self, method: Method, schema: Schema) -> Any:
        request, reply = schema.classes_of(method.name)

        async def answer(data: bytes, context: Any) -> Any:
            made = CallAnswer(
                context, reply, is_stream=method.is_stream, stall_timeout=self._stall_timeout
            )
            await self._run(method, request, data, context, made)
            whole = await made.finish()
            return None if whole is None else whole.SerializeToString()

        if method.is_stream:
            return grpc.unary_stream_rpc_method_handler(answer)
        return grpc.unary_unary_rpc_method_handler(answer)

    async def _run(
        self, method: Method, request: Any, data: bytes, context: Any, made: CallAnswer
    ) -> None:
        """A call that is cancelled, or whose time is over, is a task that is cancelled: its blocks are free then."""
        try:
            with self._place():
                metadata = tuple(context.invocation_metadata() or ())
                key = key_of_call(self._keys, metadata)
                inner = InnerRequest(
                    method.path,
                    self._body(method, request, data, context),
                    key,
                    name=_text_of(metadata, "x-request-id"),
                    verb=method.verb,
                    client=_client_of(context.peer()),
                )
                await made.of(inner, self._inner)
        except Exception as error:  # noqa: BLE001 - answered
            await abort(context, answer_to(error))

    def _body(self, method: Method, request: Any, data: bytes, context: Any) -> bytes:
        try:
            message = request.FromString(data)
        except DecodeError:
            raise BadRequestError(f"The bytes are no {request.DESCRIPTOR.full_name}.") from None
        if method.verb == "GET":
            return b""
        body = body_of(message, is_stream=method.is_stream)
        remaining = context.time_remaining()
        if remaining is not None and "timeout" not in body:
            if remaining <= 0:
                raise RequestCancelledError("The call's time was over before it began.")
            # So that it does not wait in a queue for longer than its client does.
            body["timeout"] = remaining
        return msgspec.json.encode(body)

    @contextmanager
    def _place(self) -> Iterator[None]:
        if self._num_calls >= self._max_calls:
            raise OverloadedError(f"{self._num_calls} calls run already (max_grpc_calls).")
        self._num_calls += 1
        try:
            yield
        finally:
            self._num_calls -= 1


Metadata = Iterable[tuple[str, Any]]
_Handler = Callable[[Any], Awaitable[Any]]


def key_of_call(keys: KeyRing, metadata: Metadata) -> Key | None:
    """The key that a call brings, as a header of HTTP would; None where none is needed. Raises AuthenticationError."""
    if not keys.is_needed:
        return None
    headers = [
        (name.encode(), value.encode() if isinstance(value, str) else value)
        for name, value in metadata
    ]
    return keys.authenticate({"headers": headers})


class KeyGuard(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Lets no call in without a key, nor its message, but those of open services: also none of methods that there are not."""

    def __init__(self, keys: KeyRing, open_services: Iterable[str]) -> None:
        self._keys = keys
        self._open = tuple(f"/{service}/" for service in open_services)

    async def intercept_service(self, continuation: _Handler, details: Any) -> Any:
        """Part of grpc.aio."""
        if not details.method.startswith(self._open):
            try:
                key_of_call(self._keys, details.invocation_metadata or ())
            except Exception as error:  # noqa: BLE001 - answered
                return _refusing(error)
        return await continuation(details)


def _refusing(error: Exception) -> Any:
    """A handler, of any kind of call, that only ends it; as one of streams it reads no message before."""

    async def refuse(_requests: Any, context: Any) -> None:
        await abort(context, answer_to(error))

    return grpc.stream_stream_rpc_method_handler(refuse)


def _client_of(peer: str) -> tuple[str, int] | None:
    """Of gRPC's `ipv4:127.0.0.1:80` or `ipv6:%5B::1%5D:80`."""
    kind, _, address = unquote(peer).partition(":")
    host, _, port = address.rpartition(":")
    return (host, int(port)) if kind in ("ipv4", "ipv6") and port.isdecimal() else None


def _text_of(metadata: Metadata, name: str) -> str:
    return next((value for key, value in metadata if key == name and isinstance(value, str)), "")
