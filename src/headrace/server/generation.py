"""What the generating routes share: admit → parse → prepare → submit → respond."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.api.aliases import without_aliases
from headrace.api.chat import ChatRequest
from headrace.api.fields import GenerationFields
from headrace.api.unsupported import refuse_unsupported
from headrace.completion.options import text_options
from headrace.core.errors import BadRequestError
from headrace.core.request import Request
from headrace.preprocess.constraint import constraint_field
from headrace.preprocess.prepare import Arrival, PreparedChat, Preparer
from headrace.preprocess.tokenizer import Tokenizer
from headrace.server.admission import Ticket
from headrace.server.auth import is_trusted_peer
from headrace.server.calls import Call, check_media_type, log_body, preparer_of
from headrace.server.exchange import Exchange, Plan
from headrace.server.inner import is_background, is_inner
from headrace.server.replica import Replica
from headrace.server.resume import resume
from headrace.server.served_model import ServedModel
from headrace.server.shapes import Head, Shape, fingerprint
from headrace.web.asgi import App, Receive, Scope, Send, header, send_body
from headrace.web.bodies import read_body
from headrace.web.guard import owner_of
from headrace.web.tracing import trace_of

T = TypeVar("T", bound=GenerationFields)

#: Decodes and prepares one call; the model that answers, and what it is asked.
Prepare = Callable[[Call], Awaitable[tuple[ServedModel, Plan]]]
#: Makes what writes the answer to a conversation.
Shaped = Callable[[Head, PreparedChat, Tokenizer], Shape]


def generating(replica: Replica, prepare: Prepare) -> App:
    """The handler of a generating route."""

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        is_peer = is_trusted_peer(scope, replica.config.trusted_peer_token)
        check_media_type(scope)
        event_id = header(scope, b"last-event-id")
        if event_id and replica.config.resume_window:
            # A client that sends its request again, as fetch-based readers of events do.
            with replica.bodies.reserve(scope) as reservation:
                await read_body(receive, reservation)
            await resume(replica.streams, event_id, scope, receive, send)
            return
        admitted = await _admit(replica, prepare, scope, receive, is_peer=is_peer)
        if admitted is None:
            return
        model, plan, ticket = admitted
        names, owner = _names(plan), owner_of(scope)

        async def answer(receive: Receive, send: Send) -> None:
            try:
                exchange = Exchange(replica, model, plan, ticket)
                own = [scope["headrace.request_id"], *names]
                with replica.open_requests.listed(own, owner, exchange.abort):
                    await exchange.run(scope, receive, send)
            finally:
                ticket.close()

        if plan.detach is not None:
            body = plan.detach(answer)
            await asyncio.sleep(0)  # it begins, so that it can be ended by its name
            await send_body(send, body)
        elif plan.is_stream and not is_inner(scope):
            await replica.streams.serve(names[-1], owner, answer, receive, send)
        else:
            await answer(receive, send)

    return respond


def _names(plan: Plan) -> list[str]:
    """The id of the answer, and those of its requests where it has several."""
    ids = [request.request_id for request in plan.requests]
    return ids if len(ids) == 1 else [*ids, ids[0].rpartition("-")[0]]


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
        trace = trace_of(scope)
        if trace is not None:
            trace.marks["read"] = replica.clock.monotonic()
        ticket = replica.admission.enter(len(body), is_background=is_background(scope))
        try:
            log_body(replica, body)
            model, plan = await prepare(Call(replica, body, scope, is_peer, ticket.held))
        except BaseException:
            ticket.close()
            raise
        if trace is not None:
            trace.marks["prepared"] = replica.clock.monotonic()
        ticket.resize(sum(request.num_prompt_tokens for request in plan.requests))
        return model, plan, ticket


def decode_request(call: Call, kind: type[T]) -> T:
    """The request, free of what we do not serve. Raises BadRequestError."""
    request = without_aliases(call.decode(kind))
    refuse_unsupported(request)
    if request.stream_options is not None and not request.stream:
        raise BadRequestError("'stream_options' needs 'stream' to be true.", param="stream_options")
    return request


async def check_grammar(model: ServedModel, request: Request, wire: GenerationFields) -> None:
    """Have what bounds the answer tried out. Raises GrammarError that names the field."""
    if request.grammar is not None:
        assert model.grammars is not None
        await model.grammars.check(request.grammar, constraint_field(wire))


def head_of(call: Call, request: GenerationFields, preparer: Preparer, arrival: Arrival) -> Head:
    """What every object of the answer repeats."""
    return Head(
        id=arrival.request_id,
        created=int(call.replica.clock.wall()),
        model=request.model or preparer.info.names[0],
        fingerprint=fingerprint(preparer.info),
    )


async def plan_chat(
    call: Call, wire: ChatRequest, arrival: Arrival, shaped: Shaped
) -> tuple[ServedModel, Plan]:
    """A conversation, whatever API it came by: render the template, tokenise, bound the answer."""
    model = await call.model(wire.model)
    preparer = preparer_of(model)
    prepared = await call.replica.workers.run(len(call.body), preparer.prepare_chat, wire, arrival)
    await check_grammar(model, prepared.request, wire)
    # What a grammar bounds is right to the last space.
    stands_alone = not (wire.continue_final_message or prepared.request.grammar)
    plan = Plan(
        requests=(prepared.request,),
        shape=shaped(head_of(call, wire, preparer, arrival), prepared, preparer.tokenizer),
        options=text_options(wire, stands_alone=stands_alone, reading=prepared.reading),
        is_stream=bool(wire.stream),
        is_peer=call.is_peer,
    )
    return model, plan
