"""`headrace gateway`: put together, served, reloaded, drained."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import uvloop

from headrace import __version__
from headrace.config.fleet.read import read_fleet
from headrace.config.fleet.replicas import ReplicaSpec
from headrace.config.fleet.root import FleetConfig
from headrace.config.security import SecurityConfig
from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import ConfigError
from headrace.fleet.backends.registry import backend_for
from headrace.fleet.discovery import Discovery, FileDiscovery, StaticDiscovery
from headrace.fleet.gateway.admin.routes import Admin
from headrace.fleet.gateway.app import build_app
from headrace.fleet.gateway.dispatch import Dispatcher
from headrace.fleet.gateway.router import Router
from headrace.fleet.gateway.routing.choose import choose
from headrace.fleet.gateway.service import Service
from headrace.fleet.probe import probe
from headrace.fleet.prober import Prober
from headrace.fleet.registry import Registry
from headrace.fleet.replica import Replica
from headrace.fleet.upstream.pool import Pool, address_of
from headrace.observe.logs import set_up_logging
from headrace.observe.metrics import Metrics
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
        self._metrics = Metrics()
        self._config = config
        self._registry = Registry(config.health, clock, partial(_make_replica, config))
        router = Router(self._registry, config, clock, choose)
        self._prober = Prober(self._registry, clock, probe)
        self._registry.on_change = self._on_change
        self._router = router
        dispatcher = Dispatcher(router, self._prober, config.gateway, clock)
        self._service = Service(config, self._registry, dispatcher, self._metrics, clock)
        gateway = config.gateway
        admin: list[Endpoint] = []
        if gateway.admin_keys is not None:
            keys = KeyRing(SecurityConfig(api_keys=gateway.admin_keys), clock)
            admin = Admin(self._registry, self.reload, keys, clock).endpoints()
        app = build_app(self._service, admin, config, self._metrics, clock)
        bounds = ConnectionBounds(
            max_connections=gateway.max_connections,
            read_timeout=gateway.read_timeout,
            stall_timeout=gateway.stall_timeout,
        )
        self._http = HttpServer(http_config(app, bounds, SecurityConfig()))
        self._discoveries = _discoveries(config)
        self._num_signals = 0
        self._draining: asyncio.Task[None] | None = None

    async def run(self, sock: socket.socket) -> int:
        """From the first connection to the last; the exit code."""
        self._handle_signals()
        await self._discover()
        watch = asyncio.create_task(self._watch(), name="discovery")
        log.info(
            "headrace %s gateway at %s, %d replicas", __version__, url_of(sock), len(self._registry)
        )
        try:
            await self._http.serve(sockets=[sock])
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            await self._prober.close()
            self._registry.close()
        return 0

    # -- replicas ---------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._config.discovery.period)
            try:
                await self._discover()
                self._registry.forget_idle()
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
        self._registry.reconcile(found)

    def _on_change(self) -> None:
        self._prober.sync()
        self._router.note_change()
        self._service.admission.wake()

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
        self._discoveries = _discoveries(config)
        self._registry.health = config.health
        self._router.config = config
        self._service.apply(config)
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
                await self._service.drain()
        except TimeoutError:
            log.warning("Requests still run; they are cut off")
        self._http.should_exit = True


def _make_replica(config: FleetConfig, spec: ReplicaSpec) -> Replica:
    gateway = config.gateway
    pool = Pool(
        address_of(spec.url),
        gateway.timeouts,
        max_idle=gateway.max_idle_connections,
        max_buffer=gateway.max_stream_buffer,
    )
    return Replica(spec, backend_for(spec), pool, config.health)


def _discoveries(config: FleetConfig) -> list[Discovery]:
    found: list[Discovery] = [StaticDiscovery(config.replicas)]
    if config.discovery.file is not None:
        found.append(FileDiscovery(Path(config.discovery.file).expanduser()))
    return found
