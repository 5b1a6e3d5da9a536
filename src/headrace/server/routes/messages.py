"""`POST /v1/messages` and `/v1/messages/count_tokens`, as Anthropic has them."""

from headrace.api.messages import (
    CountTokensRequest,
    MessagesRequest,
    TokenCount,
)
from headrace.preprocess.prepare import PreparedChat
from headrace.preprocess.tokenizer import Tokenizer
from headrace.server.calls import Call, answering
from headrace.server.dialects.messages_request import NAMES, to_chat
from headrace.server.dialects.messages_shape import MessagesShape
from headrace.server.dialects.names import renamed
from headrace.server.exchange import Plan
from headrace.server.generation import decode_request, generating, plan_chat
from headrace.server.replica import Replica
from headrace.server.served_model import ServedModel
from headrace.server.shapes import Head
from headrace.web.asgi import App


def create(replica: Replica) -> App:
    """The handler that answers."""
    return generating(replica, prepare)


async def prepare(call: Call) -> tuple[ServedModel, Plan]:
    """Decode, translate and plan."""
    _name(call)
    wire = decode_request(call, MessagesRequest)

    def shaped(head: Head, _prepared: PreparedChat, _tokenizer: Tokenizer) -> MessagesShape:
        return MessagesShape(head)

    with renamed(NAMES):
        return await plan_chat(call, to_chat(wire), call.arrival("msg", "_"), shaped)


def count(replica: Replica) -> App:
    """The handler that counts."""

    async def answer(call: Call) -> TokenCount:
        _name(call)
        wire = decode_request(call, CountTokensRequest)
        with renamed(NAMES):
            chat = to_chat(wire)
            preparer = await call.preparer(chat.model)
            ids = await replica.workers.run(len(call.body), preparer.chat_ids, chat)
        return TokenCount(input_tokens=len(ids))

    return answering(replica, answer)


def _name(call: Call) -> None:
    """Give the request's name under the header where Anthropic's clients look for it, too."""
    name = call.scope["headrace.request_id"]
    call.scope["headrace.headers"].append((b"request-id", name.encode()))
