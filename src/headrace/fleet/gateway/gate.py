"""The gateway as the steps of a pipeline see it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.fleet.gateway.accounts.account import Account
from headrace.fleet.gateway.call import Call
from headrace.fleet.gateway.inner import InnerAnswer, Sink
from headrace.fleet.gateway.limit import Limit
from headrace.web.asgi import Send

if TYPE_CHECKING:
    from headrace.fleet.gateway.service import Service


class CallersGate:
    """Requests that the steps of a pipeline make for its caller: paid for, queued, routed and cached like any other."""

    def __init__(self, service: "Service", call: Call, account: Account) -> None:
        self._service = service
        self._call = call
        self._account = account

    async def ask(self, path: str, body: Mapping[str, Any]) -> InnerAnswer:
        """Part of Gate. Raises HeadraceError, as for a client; cancelling the caller ends it."""
        sink = Sink()
        await self.serve(path, body, sink.send)
        return sink.answer()

    async def serve(
        self, path: str, body: Mapping[str, Any], send: Send, limit: Limit | None = None
    ) -> None:
        """Part of Gate."""
        inner = self._service.inner(path, body, self._call, limit)
        await self._service.serve(inner, self._account, send)
