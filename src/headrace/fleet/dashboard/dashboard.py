"""The dashboard of one gateway: it looks every second, and answers `/admin/dashboard`."""

import asyncio
import logging
import secrets
from typing import Final
from urllib.parse import parse_qsl

from headrace.core.clock import Clock
from headrace.core.errors import BadRequestError
from headrace.fleet.dashboard.feeds import Feeds, alerts_of
from headrace.fleet.dashboard.snapshot import Look, Snapshot, take, view_of
from headrace.fleet.dashboard.watch import Watch
from headrace.fleet.gateway.build import Parts
from headrace.fleet.gateway.request_meter import Finished
from headrace.web.asgi import Receive, Scope, Send, send_json
from headrace.web.endpoint import Access, Endpoint, Operation
from headrace.web.keys import KeyRing

PATH: Final = "/admin/dashboard"
_PERIOD: Final = 1.0
_MAX_DIGITS: Final = 15
_MAX_LIFE: Final = 64

log = logging.getLogger("headrace.fleet")


class Dashboard:
    """Make it before its gateway's parts; `watch` them when they are there."""

    def __init__(self, clock: Clock, feeds: Feeds | None = None) -> None:
        self._clock = clock
        self.feeds = feeds or Feeds()
        self._life = secrets.token_hex(8)
        self._born = clock.monotonic()
        self._parts: Parts | None = None
        self._watch: Watch | None = None
        self._task: asyncio.Task[None] | None = None

    def finished(self, finished: Finished) -> None:
        """Part of Listener."""
        if self._watch is not None:
            self._watch.finished(finished)

    def watch(self, parts: Parts) -> None:
        """Keep what these do from now on."""
        self._parts = parts
        slos = parts.slos
        self.feeds = self.feeds._replace(alerts=lambda: alerts_of(slos), objectives=slos.reports)
        self._watch = Watch(parts.registry, parts.admission, parts.pulse, self._clock)

    def start(self) -> None:
        """Look every second."""
        self._task = asyncio.create_task(self._look(), name="dashboard")

    async def close(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def snapshot(self, look: Look) -> Snapshot:
        """What a page that has `look` needs now."""
        parts, watch = self._parts, self._watch
        assert parts is not None
        assert watch is not None
        now = self._clock.monotonic()
        gateway = view_of(
            self._life,
            wall=self._clock.wall(),
            uptime=now - self._born,
            is_draining=parts.service.is_draining,
        )
        return take(look, gateway, watch, parts.registry, parts.admission, self.feeds, now)

    def endpoints(self, keys: KeyRing) -> list[Endpoint]:
        """`keys` are the operators'."""

        async def show(scope: Scope, _receive: Receive, send: Send) -> None:
            keys.authenticate(scope)
            await send_json(send, self.snapshot(read_look(scope["query_string"])))

        count = {"type": "integer", "minimum": 0}
        operation = Operation(
            summary="All that the dashboard shows; what is new since the last answer, of what grows.",
            tag="admin",
            access=Access.ADMIN,
            response=Snapshot,
            query={"life": {"type": "string"}, "fine": count, "coarse": count, "requests": count},
        )
        return [Endpoint("GET", PATH, show, operation)]

    async def _look(self) -> None:
        assert self._watch is not None
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            # Kept to the beat; seconds that were missed are left out.
            due = max(due + _PERIOD, loop.time())
            await asyncio.sleep(due - loop.time())
            try:
                self._watch.tick()
            except Exception:  # the page may stand still, the gateway must not
                log.exception("The dashboard could not look")


def read_look(query: bytes) -> Look:
    """Raises BadRequestError that names the parameter."""
    found = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    counts: dict[str, int] = {}
    for name, text in found.items():
        if name == "life":
            continue
        if name not in Look.__struct_fields__:
            raise BadRequestError(f"'{name[:60]}' is no parameter here.", param=name[:60])
        if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
            raise BadRequestError(f"'{name}': expected a number of at most 15 digits.", param=name)
        counts[name] = int(text)
    return Look(life=found.get("life", "")[:_MAX_LIFE], **counts)
