"""`POST /v1/completions`."""

from functools import partial

from headrace.api.completions import CompletionRequest
from headrace.completion.options import text_options
from headrace.server.calls import Call, preparer_of
from headrace.server.exchange import Plan
from headrace.server.generation import (
    check_grammar,
    decode_request,
    generating,
    head_of,
)
from headrace.server.replica import Replica
from headrace.server.served_model import ServedModel
from headrace.server.shapes import CompletionShape
from headrace.server.telemetry import telemetry_of
from headrace.web.asgi import App


def create(replica: Replica) -> App:
    """The route's handler."""
    return generating(replica, prepare)


async def prepare(call: Call) -> tuple[ServedModel, Plan]:
    """Decode, tokenise each prompt."""
    wire = decode_request(call, CompletionRequest)
    model = await call.model(wire.model)
    preparer = preparer_of(model)
    arrival = call.arrival("cmpl")
    requests = await call.replica.workers.run(len(call.body), preparer.completion, wire, arrival)
    await check_grammar(model, requests[0], wire)  # all prompts share it
    plan = Plan(
        requests=requests,
        shape=CompletionShape(
            head_of(call, wire, preparer, arrival),
            wire,
            preparer.tokenizer,
            partial(telemetry_of, wire, requests, call.replica.clock),
        ),
        options=text_options(wire, stands_alone=False),
        is_stream=bool(wire.stream),
        is_peer=call.is_peer,
    )
    return model, plan
