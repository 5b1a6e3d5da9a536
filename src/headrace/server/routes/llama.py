"""`POST /completion`, llama.cpp's own."""

from headrace.api.completions import CompletionRequest
from headrace.api.llama import LlamaChunk, LlamaCompletion, LlamaRequest
from headrace.api.unsupported import refuse_unsupported
from headrace.completion.options import text_options
from headrace.core.request import Request
from headrace.preprocess.prepare import Arrival, Preparer
from headrace.server.calls import Call, preparer_of
from headrace.server.dialects.llama_request import NAMES, to_completion
from headrace.server.dialects.llama_shape import LlamaShape
from headrace.server.dialects.names import renamed
from headrace.server.exchange import Plan
from headrace.server.generation import (
    check_grammar,
    decode_request,
    generating,
    head_of,
)
from headrace.server.replica import Replica, ServedModel
from headrace.web.asgi import App
from headrace.web.endpoint import Operation

COMPLETION = Operation(
    summary="Continue a text, as llama.cpp has it",
    tag="generate",
    description="Several prompts are answered with a list. A stream ends without a marker.",
    request=LlamaRequest,
    response=LlamaCompletion,
    chunk=LlamaChunk,
    example={"prompt": "Once upon a time", "n_predict": 8},
)


def completion(replica: Replica) -> App:
    """The route's handler."""
    return generating(replica, prepare)


async def prepare(call: Call) -> tuple[ServedModel, Plan]:
    """Decode, translate, tokenise each prompt."""
    wire = decode_request(call, LlamaRequest)
    model = call.replica.find(wire.model)
    preparer = preparer_of(model)
    arrival = call.arrival("cmpl")
    with renamed(NAMES):
        asked, requests = await call.replica.workers.run(
            len(call.body), _translate, preparer, wire, arrival
        )
        await check_grammar(model, requests[0], asked)
    head = head_of(call, asked, preparer, arrival)
    plan = Plan(
        requests=requests,
        shape=LlamaShape(head, wire, requests, preparer.tokenizer),
        options=text_options(asked, stands_alone=False),
        is_stream=bool(wire.stream),
        is_peer=call.is_peer,
    )
    return model, plan


def _translate(
    preparer: Preparer, wire: LlamaRequest, arrival: Arrival
) -> tuple[CompletionRequest, tuple[Request, ...]]:
    asked = to_completion(wire, preparer.tokenizer)
    refuse_unsupported(asked)
    return asked, preparer.completion(asked, arrival)
