"""Responses that were stored, or run in the background: get, cancel, delete, and the items of their input."""

from typing import Final
from urllib.parse import parse_qs

import msgspec

from headrace.api.responses import DeletedResponse, ItemList, Response
from headrace.core.errors import BadRequestError, NotFoundError
from headrace.server.replica import Replica
from headrace.web.asgi import App, Receive, Scope, Send, send_body, send_json
from headrace.web.endpoint import Endpoint, Operation
from headrace.web.guard import owner_of

MAX_PAGE: Final = 100
_PREFIX: Final = "resp_"
_OF_KEY: Final = "Only for the API key that made it."
GET = Operation(
    summary="Get a response", tag="responses", description=_OF_KEY, response=Response, errors=(404,)
)
CANCEL = Operation(
    summary="Cancel a response that is made in the background",
    tag="responses",
    description=f"Others end with their connection, or by `/v1/abort`. {_OF_KEY}",
    response=Response,
    errors=(400, 404),
)
DELETE = Operation(
    summary="Forget a response",
    tag="responses",
    description=f"One that runs in the background is ended. {_OF_KEY}",
    response=DeletedResponse,
    errors=(404,),
)
INPUT_ITEMS = Operation(
    summary="List the items of a response's input",
    tag="responses",
    description=f"`limit` (1 to 100), `order` (asc or desc), `after` (an item's id). {_OF_KEY}",
    response=ItemList,
    errors=(400, 404),
)


def endpoints(replica: Replica) -> list[Endpoint]:
    """All of these routes."""
    path = "/v1/responses/{response_id}"
    return [
        Endpoint("GET", path, get(replica), GET, id_prefix=_PREFIX),
        Endpoint("DELETE", path, delete(replica), DELETE, id_prefix=_PREFIX),
        Endpoint("POST", f"{path}/cancel", cancel(replica), CANCEL, id_prefix=_PREFIX),
        Endpoint(
            "GET", f"{path}/input_items", input_items(replica), INPUT_ITEMS, id_prefix=_PREFIX
        ),
    ]


def get(replica: Replica) -> App:
    """The handler that gives a response."""

    async def respond(scope: Scope, _receive: Receive, send: Send) -> None:
        query = parse_qs(scope["query_string"].decode("latin-1"))
        if query.get("stream", ["false"])[-1] not in ("false", "0"):
            raise BadRequestError(
                "'stream': a stored response is given whole; streams are resumed at /v1/streams/{id}.",
                param="stream",
                code="unsupported_parameter",
            )
        await send_body(send, _body(replica, scope))

    return respond


def cancel(replica: Replica) -> App:
    """The handler that ends a response."""

    async def respond(scope: Scope, _receive: Receive, send: Send) -> None:
        owner, name = _named(scope)
        if replica.background.find(owner, name) is not None:
            replica.open_requests.end(name, owner)
            await replica.background.wait(owner, name)
        body = _body(replica, scope)
        if msgspec.json.decode(body)["status"] != "cancelled":
            raise BadRequestError(
                "Only a response that still runs in the background can be cancelled.",
                param="response_id",
            )
        await send_body(send, body)

    return respond


def delete(replica: Replica) -> App:
    """The handler that forgets a response."""

    async def respond(scope: Scope, _receive: Receive, send: Send) -> None:
        owner, name = _named(scope)
        ran = replica.background.forget(owner, name)
        if ran:
            replica.open_requests.end(name, owner)
        if not (replica.responses.delete(owner, name) or ran):
            raise _unknown()
        await send_json(send, DeletedResponse(id=name))

    return respond


def input_items(replica: Replica) -> App:
    """The handler that lists the items of the input."""

    async def respond(scope: Scope, _receive: Receive, send: Send) -> None:
        stored = replica.responses.get(*_named(scope))
        if stored is None:
            raise _unknown()
        query = parse_qs(scope["query_string"].decode("latin-1"))
        items = stored.own_items()
        if _word(query, "order", "desc", ("asc", "desc")) == "desc":
            items.reverse()
        after = query.get("after", [None])[-1]
        if after is not None:
            ids = [item.id for item in items]
            if after not in ids:
                raise BadRequestError("'after' names no item of this input.", param="after")
            items = items[ids.index(after) + 1 :]
        limit = _number(query, "limit", 20)
        page = items[:limit]
        ends = (page[0].id, page[-1].id) if page else (None, None)
        await send_json(
            send,
            ItemList(data=page, first_id=ends[0], last_id=ends[1], has_more=len(items) > limit),
        )

    return respond


def _named(scope: Scope) -> tuple[bytes, str]:
    """The owner and the id of the response that the path names."""
    return owner_of(scope), scope["path_params"]["response_id"]


def _body(replica: Replica, scope: Scope) -> bytes:
    """The response as it is now. Raises NotFoundError."""
    owner, name = _named(scope)
    stored = replica.responses.get(owner, name)
    if stored is not None:
        return stored.body
    running = replica.background.find(owner, name)
    if running is None:
        raise _unknown()
    return msgspec.json.encode(running)


def _unknown() -> NotFoundError:
    return NotFoundError("There is no such response, or it is no longer kept.")


def _word(query: dict[str, list[str]], name: str, default: str, words: tuple[str, ...]) -> str:
    found = query.get(name, [default])[-1]
    if found not in words:
        raise BadRequestError(f"'{name}' must be {' or '.join(words)}.", param=name)
    return found


def _number(query: dict[str, list[str]], name: str, default: int) -> int:
    found = query.get(name, [str(default)])[-1]
    is_number = found.isascii() and found.isdecimal() and len(found) <= 4
    if not is_number or not 1 <= int(found) <= MAX_PAGE:
        raise BadRequestError(f"'{name}' must be a number from 1 to {MAX_PAGE}.", param=name)
    return int(found)
