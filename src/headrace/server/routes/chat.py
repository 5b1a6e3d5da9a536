"""`POST /v1/chat/completions`."""

from headrace.api.chat import ChatRequest
from headrace.server.asgi import App
from headrace.server.exchange import Plan
from headrace.server.generation import (
    Call,
    decode_request,
    generating,
    head_of,
    preparer_of,
    text_options,
)
from headrace.server.replica import Replica, ServedModel
from headrace.server.shapes import ChatShape


def create(replica: Replica) -> App:
    """The route's handler."""
    return generating(replica, prepare)


async def prepare(call: Call) -> tuple[ServedModel, Plan]:
    """Decode, render the template, tokenise."""
    wire = decode_request(call.body, ChatRequest)
    model = call.replica.find(wire.model)
    preparer = preparer_of(model)
    arrival = call.arrival("chatcmpl")
    request = await call.replica.workers.run(len(call.body), preparer.chat, wire, arrival)
    plan = Plan(
        requests=(request,),
        shape=ChatShape(head_of(call, wire, preparer, arrival), wire, preparer.tokenizer),
        options=text_options(wire, stands_alone=not wire.continue_final_message),
        is_stream=bool(wire.stream),
        is_peer=call.is_peer,
    )
    return model, plan
