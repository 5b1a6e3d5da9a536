"""What the generating routes share: admit → parse → prepare → submit → respond."""

import secrets
from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec import Struct

from headrace.api.decode import decode
from headrace.api.fields import GenerationFields
from headrace.api.unsupported import refuse_unsupported
from headrace.completion.respond import TextOptions
from headrace.core.errors import BadRequestError, UnavailableError, UnsupportedMediaError
from headrace.preprocess.prepare import Arrival, Preparer
from headrace.server.admission import Ticket
from headrace.server.asgi import JSON, App, Receive, Scope, Send, header
from headrace.server.auth import is_trusted_peer
from headrace.server.bodies import read_body
from headrace.server.exchange import Exchange, Plan
from headrace.server.replica import Replica, ServedModel
from headrace.server.shapes import Head, fingerprint

T = TypeVar("T", bound=GenerationFields)


class Call(Struct, frozen=True):
    """An admitted request, not yet decoded."""

    replica: Replica
    body: bytes
    is_peer: bool
    """It comes from a trusted peer."""
    time: float
    """`Clock.monotonic` at its arrival."""

    def arrival(self, prefix: str) -> Arrival:
        """Its identity for the engine; the id is the answer's `id`."""
        request_id = f"{prefix}-{secrets.token_hex(12)}"
        return Arrival(request_id=request_id, time=self.time, is_trusted=self.is_peer)


#: Decodes and prepares one call; the model that answers, and what it is asked.
Prepare = Callable[[Call], Awaitable[tuple[ServedModel, Plan]]]


def generating(replica: Replica, prepare: Prepare) -> App:
    """The handler of a generating route."""

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        is_peer = is_trusted_peer(scope, replica.config.trusted_peer_token)
        _check_media_type(scope)
        admitted = await _admit(replica, prepare, scope, receive, is_peer=is_peer)
        if admitted is None:
            return
        model, plan, ticket = admitted
        try:
            await Exchange(replica, model, plan, ticket).run(scope, receive, send)
        finally:
            ticket.close()

    return respond


async def _admit(
    replica: Replica, prepare: Prepare, scope: Scope, receive: Receive, *, is_peer: bool
) -> tuple[ServedModel, Plan, Ticket] | None:
    """What is to be done, and the right to do it; None when the client has left.

    Refused by number and announced size before the body is read, and by size before it is decoded. The
    body is gone from memory when this returns.
    """
    replica.admission.check_open()
    with replica.bodies.reserve(scope) as reservation:
        body = await read_body(receive, reservation)
        if body is None:
            return None
        ticket = replica.admission.enter(len(body))
        try:
            model, plan = await prepare(Call(replica, body, is_peer, scope["headrace.arrival"]))
        except BaseException:
            ticket.close()
            raise
        ticket.resize(sum(request.num_prompt_tokens for request in plan.requests))
        return model, plan, ticket


def decode_request(body: bytes, kind: type[T]) -> T:
    """The request, free of what we do not serve. Raises BadRequestError."""
    if not body:
        raise BadRequestError("The body is empty; it must be a JSON object.", code="invalid_json")
    request = decode(body, kind)
    refuse_unsupported(request)
    if request.stream_options is not None and not request.stream:
        raise BadRequestError("'stream_options' needs 'stream' to be true.", param="stream_options")
    return request


def preparer_of(model: ServedModel) -> Preparer:
    """Raises UnavailableError while the tokenizer is loading."""
    if model.preparer is None:
        raise UnavailableError("The model is loading.")
    return model.preparer


def head_of(call: Call, request: GenerationFields, preparer: Preparer, arrival: Arrival) -> Head:
    """What every object of the answer repeats."""
    return Head(
        id=arrival.request_id,
        created=int(call.replica.clock.wall()),
        model=request.model or preparer.info.names[0],
        fingerprint=fingerprint(preparer.info),
    )


def text_options(request: GenerationFields, *, stands_alone: bool) -> TextOptions:
    """How the tokens of the answer become text."""
    return TextOptions(
        include_stop=bool(request.include_stop_str_in_output),
        skip_special=request.skip_special_tokens is not False,
        strips_space=stands_alone,
    )


def _check_media_type(scope: Scope) -> None:
    given = header(scope, b"content-type")
    if given is None:
        return
    kind = given.partition(";")[0].strip().lower()
    if kind != JSON and not kind.endswith("+json"):
        raise UnsupportedMediaError(f"The content type must be '{JSON}', not '{kind[:100]}'.")
