"""`/admin/keys` and `/admin/usage`: keys listed, created and revoked; the ledger summed and exported."""

from collections.abc import Mapping
from contextlib import aclosing
from typing import Any
from urllib.parse import parse_qsl

from msgspec import Struct

from headrace.core.errors import BadRequestError, ConfigError
from headrace.fleet.gateway.accounts.account import CreatedKey, KeyInfo, NewKey
from headrace.fleet.gateway.accounts.build import Books
from headrace.fleet.gateway.accounts.desk import read_new_key, usage_export, usage_sums
from headrace.fleet.gateway.accounts.usage import FORMATS, GROUPS, UsageSum
from headrace.fleet.gateway.admin.door import Door
from headrace.web.asgi import Receive, Scope, Send, send_json, start_message
from headrace.web.endpoint import Endpoint

_TEXT = {"type": "string"}
_ROWS = dict.fromkeys(("since", "until", "key", "tenant", "model"), _TEXT)


class KeyList(Struct, frozen=True, kw_only=True):
    """All keys by name; never their texts."""

    keys: tuple[KeyInfo, ...]


class UsageAnswer(Struct, frozen=True, kw_only=True):
    """Sums, one for each group."""

    usage: list[UsageSum]


class AccountsAdmin:
    """The part of the admin API that is about who pays."""

    def __init__(self, books: Books, door: Door) -> None:
        self._books = books
        self._door = door

    def endpoints(self) -> list[Endpoint]:
        """Every route of it."""
        grouped = {"by": {"type": "string", "description": ", ".join(GROUPS)}, **_ROWS}
        exported: dict[str, dict[str, Any]] = {
            "format": {"type": "string", "enum": list(FORMATS)},
            **_ROWS,
        }
        endpoint = self._door.endpoint
        return [
            endpoint("GET", "/keys", self._list, "All keys, without their texts.", response=KeyList),
            endpoint(
                "POST", "/keys", self._create, "Create a key; its text is in this answer and nowhere else.",
                request=NewKey, response=CreatedKey,
            ),
            endpoint(
                "DELETE", "/keys/{name}", self._revoke, "Revoke a created key.", response=KeyInfo
            ),
            endpoint(
                "GET", "/usage", self._sum, "Sums of the ledger.", query=grouped, response=UsageAnswer
            ),
            endpoint(
                "GET", "/usage/rows", self._export, "Rows of the ledger, as JSON lines or CSV.",
                query=exported, content_type="application/jsonl",
            ),
        ]  # fmt: skip

    async def _list(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send_json(send, KeyList(keys=self._books.accounts.list_keys()))

    async def _create(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._door.body(scope, receive)
        if body is None:
            return
        try:
            created = await self._books.accounts.create_key(read_new_key(body))
        except ConfigError as error:
            raise BadRequestError(str(error)) from None
        await send_json(send, created, status=201)

    async def _revoke(self, scope: Scope, _receive: Receive, send: Send) -> None:
        await send_json(send, await self._books.accounts.revoke_key(scope["path_params"]["name"]))

    async def _sum(self, scope: Scope, _receive: Receive, send: Send) -> None:
        found = await usage_sums(self._books.usage, _query(scope))
        await send_json(send, UsageAnswer(usage=found))

    async def _export(self, scope: Scope, _receive: Receive, send: Send) -> None:
        query = _query(scope)
        async with aclosing(usage_export(self._books.usage, query)) as pieces:
            piece = await anext(pieces)  # raises before anything is sent
            kind = FORMATS[query.get("format", "jsonl")]
            await send(start_message(200, kind))
            await send({"type": "http.response.body", "body": piece.encode(), "more_body": True})
            async for piece in pieces:
                await send(
                    {"type": "http.response.body", "body": piece.encode(), "more_body": True}
                )
        await send({"type": "http.response.body", "body": b""})


def _query(scope: Scope) -> Mapping[str, str]:
    """Raises BadRequestError for a parameter that there is not, so that a slip does not sum up everything."""
    found = dict(parse_qsl(scope["query_string"].decode("latin-1")))
    for name in found:
        if name not in {"by", "format", *_ROWS}:
            raise BadRequestError(f"'{name}' is no parameter here.", param=name)
    return found
