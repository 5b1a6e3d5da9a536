"""`headrace gateway`: put together, served, reloaded, drained."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import uvloop

from headrace import __version__
from headrace.config.fleet.read import read_fleet
from headrace.config.fleet.replicas import ReplicaSpec
from headrace.config.fleet.root import FleetConfig
from headrace.config.security import SecurityConfig
from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import ConfigError
from headrace.fleet.discovery import Discovery, FileDiscovery, StaticDiscovery
from headrace.fleet.gateway.admin.routes import Admin
from headrace.fleet.gateway.app import build_app
from headrace.fleet.gateway.build import build
from headrace.observe.logs import set_up_logging
from headrace.web.endpoint import Endpoint
from headrace.web.http_server import HttpServer, allow_open_files, http_config
from headrace.web.keys import KeyRing
from headrace.web.port import bind, url_of
from headrace.web.protocol import ConnectionBounds

#: Open files beside connections: two for each client at most, logs, stores.
SPARE_FILES = 256

log = logging.getLogger("headrace.fleet")


def run_gateway(file: Path, config: FleetConfig, *, clock: Clock | None = None) -> int:
    """Serve until a signal; the exit code. Raises ConfigError for what the operator can mend."""
    set_up_logging(config.gateway.log_level, config.gateway.log_format, process="gateway")
    sock = bind(config.gateway.host, config.gateway.port)
    allow_open_files(2 * config.gateway.max_connections + SPARE_FILES)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Gateway(file, config, clock or SystemClock()).run(sock))


class Gateway:
    """One gateway process."""

    def __init__(self, file: Path, config: FleetConfig, clock: Clock) -> None:
        self._file = file
        self._config = config
        self._parts = parts = build(config, clock)
        gateway = config.gateway
        admin: list[Endpoint] = []
        if gateway.admin_keys is not None:
            keys = KeyRing(SecurityConfig(api_keys=gateway.admin_keys), clock)
            admin = Admin(parts.registry, self.reload, keys, clock).endpoints()
        bounds = ConnectionBounds(
            max_connections=gateway.max_connections,
            read_timeout=gateway.read_timeout,
            stall_timeout=gateway.stall_timeout,
        )
        app = build_app(parts, admin, config, clock)
        self._http = HttpServer(http_config(app, bounds, config.security))
        self._discoveries = _discoveries(config)
        self._num_signals = 0
        self._draining: asyncio.Task[None] | None = None

    async def run(self, sock: socket.socket) -> int:
        """From the first connection to the last; the exit code."""
        self._handle_signals()
        parts = self._parts
        await parts.books.start()
        parts.toolbox.start()
        await self._discover()
        watch = asyncio.create_task(self._watch(), name="discovery")
        log.info(
            "headrace %s gateway at %s, %d replicas",
            __version__,
            url_of(sock),
            len(self._parts.registry),
        )
        try:
            await self._http.serve(sockets=[sock])
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            await parts.shadows.close()
            await parts.toolbox.close()
            await parts.prober.close()
            await parts.service.cache.close()
            await parts.books.close()
            self._parts.registry.close()
        return 0

    # -- replicas ---------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._config.discovery.period)
            try:
                await self._discover()
                self._parts.registry.forget_idle()
            except ConfigError as error:
                log.error("%s The replicas of before stay.", error)
            except Exception:
                log.exception("Looking for replicas failed")

    async def _discover(self) -> None:
        found: list[ReplicaSpec] = []
        for discovery in self._discoveries:
            specs = await discovery.list()
            if specs is None:
                return  # what cannot be told now is not gone
            found += specs
        self._parts.registry.reconcile(found)

    # -- reload and end ---------------------------------------------------------------------------

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        handlers: dict[int, Callable[[], None]] = {
            signal.SIGTERM: self.stop,
            signal.SIGINT: self.stop,
            signal.SIGHUP: self._on_hangup,
        }
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)

    def reload(self) -> None:
        """Read the file again; no stream notices. Raises ConfigError for a bad one, and all stays as it is."""
        config = read_fleet(self._file)
        self._parts.service.apply(config)
        self._parts.registry.health = config.health
        self._discoveries = _discoveries(config)
        if (config.gateway.host, config.gateway.port) != (
            self._config.gateway.host,
            self._config.gateway.port,
        ):
            log.warning("Another address takes effect at the next start")
        self._config = config
        log.info("The configuration was read again")

    def _on_hangup(self) -> None:
        try:
            self.reload()
        except ConfigError as error:
            log.error("%s The configuration of before stays.", error)

    def stop(self) -> None:
        """Once: finish what runs, then end. Twice: end now."""
        self._num_signals += 1
        if self._num_signals == 1:
            self._draining = asyncio.create_task(self._drain(), name="drain")
        else:
            self._http.force_exit = True
            self._http.should_exit = True

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(self._config.gateway.drain_timeout):
                await self._parts.service.drain()
        except TimeoutError:
            log.warning("Requests still run; they are cut off")
        self._http.should_exit = True


def _discoveries(config: FleetConfig) -> list[Discovery]:
    found: list[Discovery] = [StaticDiscovery(config.replicas)]
    if config.discovery.file is not None:
        found.append(FileDiscovery(Path(config.discovery.file).expanduser()))
    return found
