"""`/admin/pools`, `/admin/decisions`, `/admin/instances`: pools shown and sized, decisions told."""

from typing import Any
from urllib.parse import parse_qsl

from msgspec import Struct

from headrace.api.decode import decode
from headrace.config.fleet.pools import unknown_pool
from headrace.config.units import counted
from headrace.core.clock import Clock
from headrace.core.errors import BadRequestError, NotFoundError
from headrace.fleet.autoscaler.controller import Controller
from headrace.fleet.autoscaler.shapes import (
    DecisionList,
    InstanceFacts,
    PoolsStatus,
    ScaleRequest,
    pool_status,
)
from headrace.fleet.gateway.admin.shapes import Done
from headrace.web.asgi import App, Receive, Scope, Send, send_json
from headrace.web.bodies import BodyBudget, read_body
from headrace.web.endpoint import Access, Endpoint, Operation
from headrace.web.keys import KeyRing

#: Bytes of a body that an operator sends.
MAX_BODY_BYTES = 64 * 1024
#: Entries of one answer.
MAX_ENTRIES = 10_000
_DECISIONS: dict[str, dict[str, Any]] = {
    "count": {"type": "integer", "minimum": 1, "maximum": MAX_ENTRIES, "default": 100},
    "pool": {"type": "string"},
    "after": {"type": "integer", "minimum": 0, "default": 0},
}


class PoolsAdmin:
    """The part of the admin API that is about how many replicas there are."""

    def __init__(self, controller: Controller, keys: KeyRing, clock: Clock) -> None:
        """`keys` are the operators' own."""
        self._controller = controller
        self._keys = keys
        self._clock = clock
        self._bodies = BodyBudget(MAX_BODY_BYTES)

    def endpoints(self) -> list[Endpoint]:
        """Every route of it."""
        return [
            self._endpoint("GET", "/pools", self._show, "Every pool: what it has, and why.", PoolsStatus),
            self._endpoint(
                "POST", "/pools/{pool}/scale", self._scale,
                "Set a pool's size, or give it back to its policy.", Done, request=ScaleRequest,
            ),
            self._endpoint(
                "GET", "/decisions", self._decisions,
                "The decision log, oldest first: of one `pool`, and behind the number `after`.",
                DecisionList, query=_DECISIONS,
            ),
            self._endpoint(
                "GET", "/instances/{instance}", self._describe,
                "What its driver tells of an instance: pid, address, end of its log.", InstanceFacts,
            ),
        ]  # fmt: skip

    def _endpoint(
        self,
        method: str,
        path: str,
        app: App,
        summary: str,
        response: type[Struct],
        **more: Any,
    ) -> Endpoint:
        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            self._keys.authenticate(scope)
            await app(scope, receive, send)

        operation = Operation(
            summary=summary, tag="admin", access=Access.ADMIN, response=response, **more
        )
        return Endpoint(method, f"/admin{path}", guarded, operation)

    async def _show(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send_json(send, self.status())

    def status(self) -> PoolsStatus:
        """Of all pools."""
        return status_of(self._controller, self._clock)

    async def _scale(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._bodies.reserve(scope) as reservation:
            body = await read_body(receive, reservation)
        if body is None:
            return
        pool, wanted = scope["path_params"]["pool"], decode(body, ScaleRequest)
        self._controller.scale(pool, wanted.replicas)
        words = (
            "is sized by its policy"
            if wanted.replicas is None
            else f"gets {counted(wanted.replicas, 'replica')}"
        )
        await send_json(send, Done(message=f"The pool {pool} {words}."))

    async def _decisions(self, scope: Scope, _receive: Receive, send: Send) -> None:
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        for name in query:
            if name not in _DECISIONS:
                raise BadRequestError(f"'{name[:60]}' is no parameter here.", param=name)
        count = _whole(query, "count", 100, least=1, most=MAX_ENTRIES)
        after = _whole(query, "after", 0, least=0, most=2**53)
        pool = query.get("pool")
        if pool is not None and pool not in self._controller.planner.pools:
            raise NotFoundError(unknown_pool(pool, self._controller.planner.pools))
        found = self._controller.entries.last(count, pool=pool, after=after)
        await send_json(send, DecisionList(decisions=tuple(found)))

    async def _describe(self, scope: Scope, _receive: Receive, send: Send) -> None:
        facts = await self._controller.places.describe(scope["path_params"]["instance"])
        await send_json(send, InstanceFacts(facts=facts))


def _whole(query: dict[str, str], name: str, default: int, *, least: int, most: int) -> int:
    text = query.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 18 and least <= int(text) <= most):
        raise BadRequestError(f"'{name}' must be a number from {least} to {most}.", param=name)
    return int(text)


def status_of(controller: Controller, clock: Clock) -> PoolsStatus:
    """Of all pools: decisions of the last look, phases by now; for the dashboard too."""
    now = clock.monotonic()
    planner, decisions = controller.planner, controller.entries.latest()
    facts = controller.sensors.facts({})
    signals = {
        pool.name: seen
        for key, seen in controller.signals.items()
        for pool in planner.groups.get(key, ())
    }
    pools = tuple(
        pool_status(planner, name, decisions.get(name), signals.get(name), facts, now)
        for name in planner.pools
    )
    return PoolsStatus(
        is_active=controller.is_leader, is_advisory=planner.config.advisory, pools=pools
    )
