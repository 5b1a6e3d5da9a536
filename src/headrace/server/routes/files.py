"""`/v1/files`: what batches read and write."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from headrace.api.files import FileDeleted, FileList, FileObject
from headrace.core.errors import NotFoundError
from headrace.server.batches.pages import query_of, window_of
from headrace.server.replica import Replica
from headrace.web.asgi import App, Receive, Scope, Send, send_json, start_message
from headrace.web.endpoint import Operation
from headrace.web.guard import owner_of

if TYPE_CHECKING:
    from headrace.server.batches.desk import BatchDesk

MAX_PAGE = 10_000
#: Bytes of a file that are in memory while it is sent.
_PIECE = 256 * 1024
_PAGE_QUERY: dict[str, Any] = {
    "limit": {"type": "integer", "minimum": 1},
    "after": {"type": "string"},
    "order": {"type": "string", "enum": ["asc", "desc"]},
}
CREATE = Operation(
    summary="Keep a file",
    tag="batches",
    description="JSON Lines for a batch; where the server has a `--batch-dir`.",
    form={
        "type": "object",
        "required": ["file", "purpose"],
        "properties": {
            "file": {"type": "string", "contentMediaType": "application/octet-stream"},
            "purpose": {"type": "string", "const": "batch"},
            "expires_after[anchor]": {"type": "string", "const": "created_at"},
            "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2_592_000},
        },
    },
    response=FileObject,
    errors=(404,),
)
LIST = Operation(
    summary="List files",
    tag="batches",
    description="Of the API key that asks.",
    query={**_PAGE_QUERY, "purpose": {"type": "string"}},
    response=FileList,
    errors=(400, 404),
)
ONE = Operation(summary="Show a file", tag="batches", response=FileObject, errors=(404,))
CONTENT = Operation(
    summary="Read a file",
    tag="batches",
    content_type="application/octet-stream",
    errors=(404,),
)
DELETE = Operation(summary="Delete a file", tag="batches", response=FileDeleted, errors=(400, 404))


def desk_of(replica: Replica) -> "BatchDesk":
    """Raises NotFoundError where the operator wants no files."""
    if replica.batches is None:
        raise NotFoundError("This server keeps no files and batches; it has no --batch-dir.")
    return replica.batches


def create(replica: Replica) -> App:
    """The handler of POST."""

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        file = await desk_of(replica).take_file(scope, receive, owner_of(scope))
        if file is not None:
            await send_json(send, file)

    return respond


def list_files(replica: Replica) -> App:
    """The handler of GET."""

    async def respond(scope: Scope, _receive: Receive, send: Send) -> None:
        query = query_of(scope)
        window = window_of(query, default=MAX_PAGE, largest=MAX_PAGE)
        page = await desk_of(replica).files(owner_of(scope), window, query.get("purpose"))
        found = FileList(
            data=page.items,
            first_id=page.items[0].id if page.items else None,
            last_id=page.items[-1].id if page.items else None,
            has_more=page.has_more,
        )
        await send_json(send, found)

    return respond


def one_file(replica: Replica) -> App:
    """The handler of GET for one."""

    async def respond(scope: Scope, _receive: Receive, send: Send) -> None:
        file_id = scope["path_params"]["file_id"]
        file = await desk_of(replica).file(file_id, owner_of(scope))
        await send_json(send, file)

    return respond


def delete_file(replica: Replica) -> App:
    """The handler of DELETE."""

    async def respond(scope: Scope, _receive: Receive, send: Send) -> None:
        file_id = scope["path_params"]["file_id"]
        await desk_of(replica).delete_file(file_id, owner_of(scope))
        await send_json(send, FileDeleted(id=file_id))

    return respond


def content(replica: Replica) -> App:
    """The handler of GET for a content."""

    async def respond(scope: Scope, _receive: Receive, send: Send) -> None:
        desk = desk_of(replica)
        file = await desk.file(scope["path_params"]["file_id"], owner_of(scope))
        headers = {
            "content-length": str(file.bytes),
            "content-disposition": f"attachment; filename*=UTF-8''{quote(file.filename)}",
            "x-content-type-options": "nosniff",
        }
        start = start_message(200, CONTENT.content_type, headers)
        await _send_file(send, desk.disk.content(file.id), start)

    return respond


async def _send_file(send: Send, path: Path, start: dict[str, object]) -> None:
    try:
        opened = await asyncio.to_thread(path.open, "rb")
    except FileNotFoundError:
        raise NotFoundError("There is no such file.") from None
    try:
        await send(start)
        while piece := await asyncio.to_thread(opened.read, _PIECE):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    finally:
        await asyncio.to_thread(opened.close)
