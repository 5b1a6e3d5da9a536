"""`POST /v1/completions`."""

from headrace.api.completions import CompletionRequest
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
from headrace.server.shapes import CompletionShape


def create(replica: Replica) -> App:
    """The route's handler."""
    return generating(replica, prepare)


async def prepare(call: Call) -> tuple[ServedModel, Plan]:
    """Decode, tokenise each prompt."""
    wire = decode_request(call.body, CompletionRequest)
    model = call.replica.find(wire.model)
    preparer = preparer_of(model)
    arrival = call.arrival("cmpl")
    requests = await call.replica.workers.run(len(call.body), preparer.completion, wire, arrival)
    plan = Plan(
        requests=requests,
        shape=CompletionShape(head_of(call, wire, preparer, arrival), wire, preparer.tokenizer),
        options=text_options(wire, stands_alone=False),
        is_stream=bool(wire.stream),
        is_peer=call.is_peer,
    )
    return model, plan
