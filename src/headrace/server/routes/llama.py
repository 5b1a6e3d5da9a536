"""`POST /completion` and `GET /slots`, llama.cpp's own."""

from functools import partial

from headrace.api.completions import CompletionRequest
from headrace.api.llama import (
    LlamaChunk,
    LlamaCompletion,
    LlamaNextToken,
    LlamaRequest,
    LlamaSlot,
)
from headrace.api.unsupported import refuse_unsupported
from headrace.completion.options import text_options
from headrace.config.server import Dialect
from headrace.core.errors import OverloadedError
from headrace.core.model_info import ModelInfo
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
from headrace.server.replica import Replica
from headrace.server.seats import Sitting
from headrace.server.served_model import ServedModel
from headrace.web.asgi import App, Receive, Scope, Send, send_json
from headrace.web.endpoint import Access, Operation

COMPLETION = Operation(
    summary="Continue a text, as llama.cpp has it",
    tag="generate",
    description="Several prompts are answered with a list. A stream ends without a marker.",
    request=LlamaRequest,
    response=LlamaCompletion,
    chunk=LlamaChunk,
    example={"prompt": "Once upon a time", "n_predict": 8},
)
SLOTS = Operation(
    summary="Which sequences run, as llama.cpp has it",
    tag="operate",
    description="With `fail_on_no_slot=1` a 503 when all are busy.",
    response=list[LlamaSlot],
    access=Access.OPERATOR,
)


def slots(replica: Replica) -> App:
    """The handler that shows who runs: as many slots as the engine runs sequences at once."""

    async def respond(scope: Scope, _receive: Receive, send: Send) -> None:
        info = preparer_of(next(iter(replica.models.values()))).info
        shown = [_slot(replica.seats.at(seat), seat, info) for seat in range(info.max_num_seqs)]
        is_full = all(slot.is_processing for slot in shown)
        if is_full and b"fail_on_no_slot=1" in scope.get("query_string", b"").split(b"&"):
            raise OverloadedError("No slot is free.")
        await send_json(send, shown)

    return respond


def _slot(sitting: Sitting | None, seat: int, info: ModelInfo) -> LlamaSlot:
    left = -1 if sitting is None else max(0, sitting.max_tokens - sitting.num_made)
    made = 0 if sitting is None else sitting.num_made
    return LlamaSlot(
        id=seat,
        id_task=-1 if sitting is None else sitting.task,
        n_ctx=info.max_context,
        speculative=False,
        is_processing=sitting is not None,
        next_token=[LlamaNextToken(has_next_token=left > 0, n_remain=left, n_decoded=made)],
    )


def completion(replica: Replica) -> App:
    """The route's handler."""
    return generating(replica, prepare)


async def prepare(call: Call) -> tuple[ServedModel, Plan]:
    """Decode, translate, tokenise each prompt."""
    wire = decode_request(call, LlamaRequest)
    model = await call.model(wire.model)
    preparer = preparer_of(model)
    arrival = call.arrival("cmpl")
    is_llama = call.replica.config.dialect is Dialect.LLAMA_CPP
    with renamed(NAMES):
        asked, requests = await call.replica.workers.run(
            len(call.body), partial(_translate, is_llama=is_llama), preparer, wire, arrival
        )
        await check_grammar(model, requests[0], asked)
    head = head_of(call, asked, preparer, arrival)
    plan = Plan(
        requests=requests,
        shape=LlamaShape(head, wire, requests, preparer.tokenizer, call.replica.clock),
        options=text_options(asked, stands_alone=False),
        is_stream=bool(wire.stream),
        is_peer=call.is_peer,
    )
    return model, plan


def _translate(
    preparer: Preparer, wire: LlamaRequest, arrival: Arrival, *, is_llama: bool
) -> tuple[CompletionRequest, tuple[Request, ...]]:
    asked = to_completion(wire, preparer.tokenizer, has_own_defaults=is_llama)
    refuse_unsupported(asked)
    return asked, preparer.completion(asked, arrival)
