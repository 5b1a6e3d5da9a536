"""`POST /v1/responses` and counting; what is done with stored ones is in `stored_responses.py`."""

from functools import partial

import msgspec
from msgspec import structs

from headrace.api.responses import InputItem, Response, ResponsesFields, ResponsesRequest
from headrace.api.text import InputTokens
from headrace.core.errors import BadRequestError
from headrace.preprocess.prepare import PreparedChat
from headrace.preprocess.tokenizer import Tokenizer
from headrace.server.calls import Call, answering
from headrace.server.dialects.names import renamed
from headrace.server.dialects.response_object import begun_response
from headrace.server.dialects.responses_request import NAMES, input_items, to_chat
from headrace.server.dialects.responses_shape import ResponsesShape
from headrace.server.exchange import Plan
from headrace.server.generation import decode_request, generating, plan_chat
from headrace.server.replica import Replica
from headrace.server.resume import Produce
from headrace.server.served_model import ServedModel
from headrace.server.shapes import Head
from headrace.server.telemetry import telemetry_of
from headrace.web.asgi import App


def create(replica: Replica) -> App:
    """The handler that answers."""
    return generating(replica, prepare)


async def prepare(call: Call) -> tuple[ServedModel, Plan]:
    """Decode, find what it goes on from, translate and plan."""
    wire = decode_request(call, ResponsesRequest)
    replica, owner = call.replica, call.owner
    is_stored = wire.store is not False and replica.responses.is_open
    _check_background(wire, is_stored=is_stored)
    arrival = call.arrival("resp", "_")
    with renamed(NAMES):
        before, own = _items(call, wire, arrival.request_id)

        def keep(response: Response) -> None:
            is_wanted = not wire.background or replica.background.find(owner, response.id)
            if is_stored and is_wanted:
                replica.responses.put(owner, response, before, own)

        def shaped(head: Head, prepared: PreparedChat, tokenizer: Tokenizer) -> ResponsesShape:
            begun = begun_response(head, wire, prepared.request, is_stored=is_stored)
            wanted = partial(telemetry_of, asked, [prepared.request], replica.clock)
            return ResponsesShape(begun, tokenizer.all_bytes, replica.clock.wall, keep, wanted)

        asked = to_chat(wire, before, own)
        model, plan = await plan_chat(call, asked, arrival, shaped)
    if wire.background:
        assert isinstance(plan.shape, ResponsesShape)
        plan = structs.replace(plan, detach=partial(_detach, replica, owner, plan.shape))
    return model, plan


def count(replica: Replica) -> App:
    """The handler that counts."""

    async def answer(call: Call) -> InputTokens:
        wire = decode_request(call, ResponsesFields)
        with renamed(NAMES):
            chat = to_chat(wire, *_items(call, wire, ""))
            preparer = await call.preparer(chat.model)
            ids = await replica.workers.run(len(call.body), preparer.chat_ids, chat)
        return InputTokens(input_tokens=len(ids))

    return answering(replica, answer)


def _items(
    call: Call, wire: ResponsesFields, response_id: str
) -> tuple[list[InputItem], list[InputItem]]:
    """The conversation before, and the request's own items."""
    store, owner = call.replica.responses, call.owner

    def find(item_id: str, where: str) -> InputItem:
        item = store.find_item(owner, item_id)
        if item is None:
            raise BadRequestError(
                f"'{where}': no stored response has an item of that id.", param=where
            )
        return item

    before: list[InputItem] = []
    if wire.previous_response_id is not None:
        stored = store.get(owner, wire.previous_response_id)
        if stored is None:
            raise BadRequestError(
                "'previous_response_id' names no response that is stored here; it may have been forgotten.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        before = stored.conversation()
    return before, input_items(wire, f"item_{response_id.partition('_')[2]}_", find)


def _check_background(wire: ResponsesRequest, *, is_stored: bool) -> None:
    if wire.background and not is_stored:
        raise BadRequestError(
            "'background' needs a response that is stored, and this one is not.", param="background"
        )
    if wire.background and wire.stream:
        raise BadRequestError(
            "'background' and 'stream' exclude each other here.",
            param="background",
            code="unsupported_parameter",
        )


def _detach(replica: Replica, owner: bytes, shape: ResponsesShape, produce: Produce) -> bytes:
    """Let a response be made without its client, who gets it as it begins."""
    replica.background.start(owner, shape.begun, produce, shape.failed)
    return msgspec.json.encode(shape.begun)
