"""`/admin/slos` and `/admin/alerts`: how objectives stand, and what is at risk."""

from msgspec import Struct

from headrace.fleet.slo.alerts import Alert
from headrace.fleet.slo.values import SloReport
from headrace.fleet.slo.watch import SloWatch
from headrace.web.asgi import App, Receive, Scope, Send, send_json
from headrace.web.endpoint import Access, Endpoint, Operation
from headrace.web.keys import KeyRing


class SloList(Struct, frozen=True, kw_only=True):
    """Every objective for every model that was asked for."""

    slos: list[SloReport]


class AlertList(Struct, frozen=True, kw_only=True):
    """What fires, critical ones first; and what is over, the last one first."""

    firing: list[Alert]
    past: list[Alert]


class ObjectivesAdmin:
    """The part of the admin API that is about objectives."""

    def __init__(self, watch: SloWatch, keys: KeyRing) -> None:
        self._watch = watch
        self._keys = keys

    def endpoints(self) -> list[Endpoint]:
        """Every route of it."""
        return [
            self._endpoint("/slos", self._slos, "Objectives and their error budgets.", SloList),
            self._endpoint(
                "/alerts", self._alerts, "Alerts that fire, and those that are over.", AlertList
            ),
        ]

    def _endpoint(self, path: str, app: App, summary: str, response: type[Struct]) -> Endpoint:
        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            self._keys.authenticate(scope)
            await app(scope, receive, send)

        operation = Operation(summary=summary, tag="admin", access=Access.ADMIN, response=response)
        return Endpoint("GET", f"/admin{path}", guarded, operation)

    async def _slos(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send_json(send, SloList(slos=self._watch.reports()))

    async def _alerts(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send_json(send, AlertList(firing=self._watch.firing(), past=self._watch.past()))
