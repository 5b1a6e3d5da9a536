"""`/admin`: replicas listed, added, drained, removed; the configuration read again."""

from collections.abc import Callable

import msgspec

from headrace.api.decode import decode
from headrace.config.fleet.read import construct
from headrace.config.fleet.replicas import ReplicaSpec
from headrace.core.clock import Clock
from headrace.core.errors import BadRequestError, ConfigError, NotFoundError
from headrace.fleet.gateway.admin.door import Door
from headrace.fleet.gateway.admin.shapes import Done, FleetStatus, status_of
from headrace.fleet.registry import Registry
from headrace.fleet.replica import Replica
from headrace.web.asgi import App, Receive, Scope, Send, send_json
from headrace.web.endpoint import Endpoint


class Admin:
    """The admin API of one gateway."""

    def __init__(
        self, registry: Registry, reload: Callable[[], list[str]], door: Door, clock: Clock
    ) -> None:
        """`reload` names settings that wait for the next start. It raises ConfigError for a file that is refused."""
        self._registry = registry
        self._reload = reload
        self._door = door
        self._clock = clock

    def endpoints(self) -> list[Endpoint]:
        """Every route of it."""
        one = "/replicas/{replica_id}"
        return [
            self._endpoint("GET", "/replicas", self._show, "Every replica, its standing and load."),
            self._endpoint(
                "POST",
                "/replicas",
                self._add,
                "Add a replica, or change one: what is not named stays.",
            ),
            self._endpoint("POST", f"{one}/drain", self._drain, "Send a replica nothing new."),
            self._endpoint("POST", f"{one}/undrain", self._undrain, "Let it take part again."),
            self._endpoint("DELETE", one, self._remove, "Let a replica finish, and forget it."),
            self._endpoint("POST", "/reload", self._read_again, "Read the configuration again."),
        ]

    def _endpoint(self, method: str, path: str, app: App, summary: str) -> Endpoint:
        response = FleetStatus if method == "GET" else Done
        return self._door.endpoint(method, path, app, summary, response=response)

    async def _show(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        now = self._clock.monotonic()
        found = tuple(status_of(replica, now) for replica in self._registry)
        await send_json(send, FleetStatus(replicas=found))

    async def _add(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._door.body(scope, receive)
        if body is None:
            return
        spec = _spec(body)
        before = self._registry.get(spec.name)
        if before is not None:
            spec = _changed(before.spec, spec, body)
        try:
            self._registry.add(spec)
        except ConfigError as error:
            raise BadRequestError(str(error)) from None
        what = "added" if before is None else "changed"
        status = 201 if before is None else 200
        await send_json(send, Done(message=f"Replica {spec.name} was {what}."), status=status)

    async def _drain(self, scope: Scope, _receive: Receive, send: Send) -> None:
        replica = self._named(scope)
        self._registry.set_draining(replica, True)
        await send_json(send, Done(message=f"Replica {replica.id} gets nothing new."))

    async def _undrain(self, scope: Scope, _receive: Receive, send: Send) -> None:
        replica = self._named(scope)
        self._registry.set_draining(replica, False)
        await send_json(send, Done(message=f"Replica {replica.id} takes part again."))

    async def _remove(self, scope: Scope, _receive: Receive, send: Send) -> None:
        replica = self._named(scope)
        message = self._removal(replica.id)
        self._registry.remove(replica.id)
        await send_json(send, Done(message=message))

    async def _read_again(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        try:
            waiting = self._reload()
        except ConfigError as error:
            raise BadRequestError(f"{error} The configuration of before stays.") from None
        later = f" These take effect at the next start: {', '.join(waiting)}." if waiting else ""
        await send_json(send, Done(message=f"The configuration was read again.{later}"))

    def _removal(self, name: str) -> str:
        """What becomes of it."""
        if not self._registry.is_listed(name):
            return f"Replica {name} finishes what it has, and is then forgotten."
        if self._registry.is_added(name):
            return f"What was changed of replica {name} is taken back: it is again as the configuration has it."
        return (
            f"Replica {name} gets nothing new. It is not forgotten while the configuration, a pool or `discovery.file` names "
            f"it: take it out there, or let it take part again by `headrace fleet undrain {name}`."
        )

    def _named(self, scope: Scope) -> Replica:
        name = scope["path_params"]["replica_id"]
        replica = self._registry.get(name)
        if replica is None:
            raise NotFoundError(f"There is no replica '{name[:200]}'.")
        return replica


def _spec(body: bytes) -> ReplicaSpec:
    try:
        return decode(body, ReplicaSpec, construct=construct)
    except ConfigError as error:
        raise BadRequestError(str(error), param="url") from None


def _changed(before: ReplicaSpec, spec: ReplicaSpec, body: bytes) -> ReplicaSpec:
    """What is not named stays; but another server gets nothing of this one, its keys least of all."""
    if spec.url.rstrip("/") != before.url.rstrip("/"):
        return spec
    named = {name: getattr(spec, name) for name in msgspec.json.decode(body) if name != "url"}
    return msgspec.structs.replace(before, **named)
