"""`POST /v1/chat/completions`."""

from headrace.api.chat import ChatChunk, ChatCompletion, ChatRequest
from headrace.server.asgi import App
from headrace.server.calls import Call, preparer_of
from headrace.server.endpoint import Operation
from headrace.server.exchange import Plan
from headrace.server.generation import (
    check_grammar,
    decode_request,
    generating,
    head_of,
    text_options,
)
from headrace.server.replica import Replica, ServedModel
from headrace.server.shapes import ChatShape

CREATE = Operation(
    summary="Answer a conversation",
    tag="generate",
    description="Through the model's chat template; whole, or as server-sent events with `stream`.",
    request=ChatRequest,
    response=ChatCompletion,
    chunk=ChatChunk,
    example={"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8},
)


def create(replica: Replica) -> App:
    """The route's handler."""
    return generating(replica, prepare)


async def prepare(call: Call) -> tuple[ServedModel, Plan]:
    """Decode, render the template, tokenise."""
    wire = decode_request(call, ChatRequest)
    model = call.replica.find(wire.model)
    preparer = preparer_of(model)
    arrival = call.arrival("chatcmpl")
    prepared = await call.replica.workers.run(len(call.body), preparer.prepare_chat, wire, arrival)
    await check_grammar(model, prepared.request, wire)
    reading = prepared.reading
    head = head_of(call, wire, preparer, arrival)
    # What a grammar bounds is right to the last space.
    stands_alone = not (wire.continue_final_message or prepared.request.grammar)
    plan = Plan(
        requests=(prepared.request,),
        shape=ChatShape(head, wire, preparer.tokenizer, reading),
        options=text_options(wire, stands_alone=stands_alone, reading=reading),
        is_stream=bool(wire.stream),
        is_peer=call.is_peer,
    )
    return model, plan
