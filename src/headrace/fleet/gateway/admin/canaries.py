"""`/admin/canaries`: how trials stand, and trying one again that was switched off."""

from msgspec import Struct

from headrace.core.clock import Clock
from headrace.core.errors import NotFoundError
from headrace.fleet.gateway.admin.door import Door
from headrace.fleet.gateway.admin.shapes import Done
from headrace.fleet.gateway.models.canary import Canaries
from headrace.web.asgi import Receive, Scope, Send, send_json
from headrace.web.endpoint import Endpoint


class CanaryStatus(Struct, frozen=True, kw_only=True):
    """One rule whose split has a canary."""

    rule: str
    state: str
    """on or off."""
    reason: str
    """Why it was switched off."""
    breaches: int
    """Comparisons in a row that it failed."""


class CanaryList(Struct, frozen=True, kw_only=True):
    """All of them."""

    canaries: tuple[CanaryStatus, ...]


class CanariesAdmin:
    """The routes of one gateway."""

    def __init__(self, canaries: Canaries, door: Door, clock: Clock) -> None:
        self._canaries = canaries
        self._door = door
        self._clock = clock

    def endpoints(self) -> list[Endpoint]:
        """Both."""
        reset = "/canaries/{rule:path}/reset"
        return [
            self._door.endpoint(
                "GET", "/canaries", self._show, "How every canary stands.", response=CanaryList
            ),
            self._door.endpoint("POST", reset, self._reset, "Try a canary again.", response=Done),
        ]

    async def _show(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        off = self._canaries.off(self._clock.monotonic())
        found = tuple(
            CanaryStatus(
                rule=name,
                state="off" if name in off else "on",
                reason=off.get(name, ""),
                breaches=breaches,
            )
            for name, breaches in self._canaries.breaches().items()
        )
        await send_json(send, CanaryList(canaries=found))

    async def _reset(self, scope: Scope, _receive: Receive, send: Send) -> None:
        rule = scope["path_params"]["rule"]
        if not self._canaries.reset(rule):
            raise NotFoundError(f"No rule '{rule[:200]}' has a canary.")
        await send_json(send, Done(message=f"The canary of {rule} is tried again."))
