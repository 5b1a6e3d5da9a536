"""Responses that replicas keep: asked for, cancelled and forgotten where they live."""

from typing import Final
from urllib.parse import parse_qs

from headrace.core.errors import BadGatewayError, BadRequestError, NotFoundError
from headrace.fleet.backends.values import Refusal
from headrace.fleet.gateway.accounts.account import Account
from headrace.fleet.gateway.accounts.accounts import Accounts
from headrace.fleet.gateway.accounts.meters import Estimate
from headrace.fleet.gateway.attempts import final_error
from headrace.fleet.gateway.responses.homes import Homes, owner_of
from headrace.fleet.gateway.responses.keepers import Keepers
from headrace.fleet.gateway.service import ACCOUNT
from headrace.fleet.replica import Replica
from headrace.fleet.upstream.failure import UpstreamError
from headrace.web.asgi import Receive, Scope, Send, send_body
from headrace.web.endpoint import Endpoint, Operation

PATH: Final = "/v1/responses/{response_id}"
_PREFIX: Final = "resp_"
#: What becomes of a request is the request's fault where the replica says so; else it is between us and the replica.
_THE_CLIENTS: Final = (400, 404, 405, 409, 410, 422, 429, 501)


class StoredResponses:
    """The routes of one gateway."""

    def __init__(self, keepers: Keepers, homes: Homes, accounts: Accounts, max_bytes: int) -> None:
        """`max_bytes` is the largest response that is passed on."""
        self._keepers = keepers
        self._homes = homes
        self._accounts = accounts
        self._max_bytes = max_bytes

    def endpoints(self) -> list[Endpoint]:
        """All of them."""
        rows = (
            ("GET", PATH, "Get a response from the replica that keeps it."),
            ("DELETE", PATH, "Have a response forgotten."),
            ("POST", f"{PATH}/cancel", "Cancel a response that is made in the background."),
            ("GET", f"{PATH}/input_items", "List the items of a response's input."),
        )
        return [
            Endpoint(
                method,
                path,
                self._answer,
                Operation(summary=summary, tag="responses", errors=(400, 404)),
                id_prefix=_PREFIX,
            )
            for method, path, summary in rows
        ]

    async def _answer(self, scope: Scope, _receive: Receive, send: Send) -> None:
        account: Account = scope[ACCOUNT]
        name: str = scope["path_params"]["response_id"]
        query = scope.get("query_string", b"").decode("latin-1")
        if parse_qs(query).get("stream", ["false"])[-1] not in ("false", "0"):
            raise BadRequestError(
                "'stream': a stored response is given whole.",
                param="stream",
                code="unsupported_parameter",
            )
        with await self._accounts.reserve(account, Estimate()) as reservation:
            reservation.settle(tokens=0, cost=0)  # it counts as a request, and costs nothing else
        replica = await self._keepers.find(account.tenant, name)
        path = scope["path"] + (f"?{query}" if query else "")
        status, content_type, body = await self._asked(replica, scope["method"], path, account)
        if status == 404 or (scope["method"] == "DELETE" and status == 200):
            self._homes.forget(account.tenant, name)
        await send_body(send, body, status=status, content_type=content_type)

    async def _asked(
        self, replica: Replica, method: str, path: str, account: Account
    ) -> tuple[int, str, bytes]:
        """Status, type and body of the replica's answer. Raises HeadraceError where it does not answer."""
        asked = replica.backend.stored(method, path, owner_of(account.tenant))
        if asked is None:  # its name now means another server
            raise NotFoundError("There is no such response, or it is no longer kept.")
        try:
            response = await replica.pool.request(
                asked.method, asked.path, asked.headers, asked.body
            )
            try:
                body = await response.read_all(self._max_bytes)
            finally:
                replica.pool.release(response)
        except UpstreamError as failure:
            raise final_error(failure) from None
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in response.headers.items()
        }
        if response.status < 300:
            return response.status, headers.get("content-type", "application/json"), body
        refusal: Refusal = replica.backend.refusal(response.status, headers, body)
        if refusal.status not in _THE_CLIENTS:
            raise BadGatewayError("The replica that keeps this response failed to answer.")
        return refusal.status, "application/json", refusal.body
