"""What a route gets of a request: its body as a wire struct, and who sent it. One way in for all of them."""

import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import quote

from msgspec import Raw, Struct

from headrace.api.decode import decode
from headrace.api.depth import check_depth
from headrace.core.errors import BadRequestError, UnavailableError, UnsupportedMediaError
from headrace.observe.logs import one_line
from headrace.preprocess.prepare import Arrival, Preparer
from headrace.server.auth import is_trusted_peer
from headrace.server.inner import is_background
from headrace.server.replica import Replica
from headrace.server.served_model import ServedModel
from headrace.web.asgi import JSON, App, Receive, Scope, Send, header, send_json
from headrace.web.bodies import read_body
from headrace.web.guard import key_of, owner_of

T = TypeVar("T", bound=Struct)

#: Names that one answer tells of, and characters of each.
MAX_NAMES = 20
MAX_NAME_CHARS = 64
#: Characters of a body that are logged.
MAX_LOGGED = 4096
#: Seconds that a request has waited until its model was loaded or woken; absent when it was there.
COLD_START = b"x-headrace-cold-start"
_Members = dict[str, Raw]

log = logging.getLogger("headrace.prompts")


class Call(Struct, frozen=True):
    """A request whose body is here, not yet decoded."""

    replica: Replica
    body: bytes
    scope: Scope
    is_peer: bool
    """It comes from a trusted peer."""
    held: ExitStack
    """Open as long as it goes on; the models that it uses are held in it."""

    @property
    def owner(self) -> bytes:
        """Whose it is: the digest of its API key, empty where none is needed."""
        return owner_of(self.scope)

    @property
    def _key_digest(self) -> bytes:
        """Prefix caches are kept apart by key: a gateway keeps its tenants apart by salts, whoever owns what."""
        key = key_of(self.scope)
        return b"" if key is None else key.digest

    async def model(self, name: str | None) -> ServedModel:
        """The model of this name, ready to serve; held until the call ends.

        The answer tells how long it was waited for. Raises as `Replica.obtain`.
        """
        model, seconds = await self.replica.obtain(name, self.held)
        if seconds is not None:
            self.scope["headrace.headers"].append((COLD_START, f"{seconds:.3f}".encode()))
        return model

    async def preparer(self, name: str | None) -> Preparer:
        """What makes tokens for the model of this name; its engine need not be ready for that."""
        found = self.replica.find(name).preparer
        return found if found is not None else preparer_of(await self.model(name))

    def arrival(self, prefix: str, separator: str = "-") -> Arrival:
        """Its identity for the engine; the id is the answer's `id`."""
        security = self.replica.config.security
        return Arrival(
            request_id=f"{prefix}{separator}{secrets.token_hex(12)}",
            time=self.scope["headrace.arrival"],
            is_trusted=self.is_peer,
            tenant=self._key_digest if security.isolate_keys else b"",
            is_background=is_background(self.scope),
        )

    def names(self) -> set[str]:
        """Of the body's fields. Raises BadRequestError where it is no object."""
        self._check()
        return set(decode(self.body, _Members))

    def decode(self, kind: type[T]) -> T:
        """The body. Raises BadRequestError, also for unknown fields if the operator is strict."""
        self._check()
        request = decode(self.body, kind)
        # The body is an object, or it would not have been decoded. Values are skipped, not made.
        names = decode(self.body, _Members).keys() - kind.__struct_encode_fields__
        if names:
            self._note_ignored(sorted(names), is_strict=self.replica.config.strict)
        return request

    def _check(self) -> None:
        if not self.body:
            raise BadRequestError(
                "The body is empty; it must be a JSON object.", code="invalid_json"
            )
        check_depth(self.body, self.replica.config.max_json_depth)

    def _note_ignored(self, names: list[str], *, is_strict: bool) -> None:
        if is_strict:
            shown = ", ".join(f"'{one_line(name[:MAX_NAME_CHARS])}'" for name in names[:MAX_NAMES])
            raise BadRequestError(
                f"Fields that this server does not know: {shown}. It is strict; leave them out.",
                param=names[0][:MAX_NAME_CHARS],
                code="unknown_parameter",
            )
        shown = ", ".join(quote(name[:MAX_NAME_CHARS], safe="[]$") for name in names[:MAX_NAMES])
        more = ", ..." if len(names) > MAX_NAMES else ""
        self.scope["headrace.headers"].append(
            (b"x-headrace-ignored-fields", (shown + more).encode())
        )


#: Answers one call with a struct.
Answer = Callable[[Call], Awaitable[Any]]


def answering(replica: Replica, answer: Answer) -> App:
    """The handler of a route that takes a JSON body and gives a JSON object."""

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        async with receiving(replica, scope, receive) as call:
            if call is None:
                return
            result = await answer(call)
        await send_json(send, result)

    return respond


@asynccontextmanager
async def receiving(replica: Replica, scope: Scope, receive: Receive) -> AsyncIterator[Call | None]:
    """A request with its body, which counts as buffered within; None when the client has left."""
    is_peer = is_trusted_peer(scope, replica.config.trusted_peer_token)
    check_media_type(scope)
    with replica.bodies.reserve(scope) as reservation, ExitStack() as held:
        body = await read_body(receive, reservation)
        yield None if body is None else Call(replica, body, scope, is_peer, held)


def log_body(replica: Replica, body: bytes) -> None:
    """Write a body to the log, if the operator wants that."""
    if replica.config.security.log_prompts:
        text = body[:MAX_LOGGED].decode("utf-8", "replace")
        more = "" if len(body) <= MAX_LOGGED else f"... ({len(body)} bytes)"
        log.info("body %s%s", one_line(text), more)


def preparer_of(model: ServedModel) -> Preparer:
    """Raises UnavailableError while the tokenizer is loading."""
    if model.preparer is None:
        raise UnavailableError("The model is loading.")
    return model.preparer


def check_media_type(scope: Scope) -> None:
    """Raises UnsupportedMediaError for what says that it is no JSON."""
    given = header(scope, b"content-type")
    if given is None:
        return
    kind = given.partition(";")[0].strip().lower()
    if kind != JSON and not kind.endswith("+json"):
        raise UnsupportedMediaError(f"The content type must be '{JSON}', not '{kind[:100]}'.")
