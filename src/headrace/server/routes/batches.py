"""`/v1/batches`: many requests that nobody waits for."""

from headrace.api.batches import Batch, BatchList, BatchRequest
from headrace.server.batches.pages import query_of, window_of
from headrace.server.calls import Call, answering
from headrace.server.replica import Replica
from headrace.server.routes.files import desk_of
from headrace.web.asgi import App, Receive, Scope, Send, send_json
from headrace.web.endpoint import Operation
from headrace.web.guard import owner_of

MAX_PAGE = 100
CREATE = Operation(
    summary="Begin a batch",
    tag="batches",
    description=(
        "Every line of a file is answered as if it had been sent to `endpoint`, in places that nobody "
        "else needs; where the server has a `--batch-dir`."
    ),
    request=BatchRequest,
    response=Batch,
    example={
        "input_file_id": "file-0123456789abcdef01234567",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    },
    errors=(404,),
)
LIST = Operation(
    summary="List batches",
    tag="batches",
    description="Of the API key that asks, the youngest first.",
    query={
        "limit": {"type": "integer", "minimum": 1, "maximum": MAX_PAGE},
        "after": {"type": "string"},
    },
    response=BatchList,
    errors=(400, 404),
)
ONE = Operation(
    summary="Show a batch, and how far it is", tag="batches", response=Batch, errors=(404,)
)
CANCEL = Operation(
    summary="End a batch",
    tag="batches",
    description="What has been answered by then is in its output file.",
    response=Batch,
    errors=(404,),
)


def create(replica: Replica) -> App:
    """The handler of POST."""

    async def answer(call: Call) -> Batch:
        desk = desk_of(replica)
        return await desk.create(call.decode(BatchRequest), call.owner)

    return answering(replica, answer)


def list_batches(replica: Replica) -> App:
    """The handler of GET."""

    async def respond(scope: Scope, _receive: Receive, send: Send) -> None:
        window = window_of(query_of(scope), default=20, largest=MAX_PAGE)
        page = await desk_of(replica).batches(owner_of(scope), window)
        found = BatchList(
            data=page.items,
            first_id=page.items[0].id if page.items else None,
            last_id=page.items[-1].id if page.items else None,
            has_more=page.has_more,
        )
        await send_json(send, found)

    return respond


def one_batch(replica: Replica) -> App:
    """The handler of GET for one."""

    async def respond(scope: Scope, _receive: Receive, send: Send) -> None:
        batch_id = scope["path_params"]["batch_id"]
        await send_json(send, await desk_of(replica).batch(batch_id, owner_of(scope)))

    return respond


def cancel(replica: Replica) -> App:
    """The handler of POST to a batch's `cancel`; a body is not read."""

    async def respond(scope: Scope, _receive: Receive, send: Send) -> None:
        batch_id = scope["path_params"]["batch_id"]
        await send_json(send, await desk_of(replica).cancel(batch_id, owner_of(scope)))

    return respond
