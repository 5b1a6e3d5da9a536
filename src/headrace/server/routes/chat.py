"""`POST /v1/chat/completions`."""

from functools import partial

from msgspec import UNSET, UnsetType

from headrace.api.chat import ChatRequest, VerbosePrompt
from headrace.config.server import Dialect
from headrace.preprocess.prepare import PreparedChat
from headrace.preprocess.tokenizer import Tokenizer
from headrace.server.calls import Call
from headrace.server.exchange import Plan
from headrace.server.generation import decode_request, generating, plan_chat
from headrace.server.replica import Replica
from headrace.server.served_model import ServedModel
from headrace.server.shapes import ChatShape, Head
from headrace.server.telemetry import telemetry_of
from headrace.web.asgi import App


def create(replica: Replica) -> App:
    """The route's handler."""
    return generating(replica, prepare)


async def prepare(call: Call) -> tuple[ServedModel, Plan]:
    """Decode and plan."""
    wire = decode_request(call, ChatRequest)

    def shaped(head: Head, prepared: PreparedChat, tokenizer: Tokenizer) -> ChatShape:
        telemetry = partial(telemetry_of, wire, [prepared.request], call.replica.clock)
        verbose: VerbosePrompt | UnsetType = UNSET
        if wire.verbose and not wire.stream:
            ids = prepared.request.prompt_token_ids
            verbose = VerbosePrompt(prompt=tokenizer.decode(ids, skip_special=False))
        is_llama = call.replica.config.dialect is Dialect.LLAMA_CPP
        return ChatShape(
            head,
            wire,
            tokenizer,
            prepared.reading,
            telemetry,
            verbose,
            opens_with_null=is_llama,
        )

    return await plan_chat(call, wire, call.arrival("chatcmpl"), shaped)
