"""`headrace gateway`: put together, served, reloaded, drained."""

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import uvloop

from headrace import __version__
from headrace.config.fleet.read import read_fleet
from headrace.config.fleet.restart import needing_start
from headrace.config.fleet.root import FleetConfig
from headrace.config.security import SecurityConfig
from headrace.config.units import counted
from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import ConfigError
from headrace.fleet.backends.registry import backend_for
from headrace.fleet.dashboard.dashboard import Dashboard
from headrace.fleet.dashboard.files import file_endpoints
from headrace.fleet.discovery import Discovery, FileDiscovery, Sources, StaticDiscovery
from headrace.fleet.drivers.places import fleet_name, state_directory
from headrace.fleet.gateway.accounts.directory import Directory
from headrace.fleet.gateway.admin.accounts import AccountsAdmin
from headrace.fleet.gateway.admin.canaries import CanariesAdmin
from headrace.fleet.gateway.admin.door import Door
from headrace.fleet.gateway.admin.objectives import ObjectivesAdmin
from headrace.fleet.gateway.admin.routes import Admin
from headrace.fleet.gateway.app import build_app
from headrace.fleet.gateway.build import build
from headrace.fleet.gateway.companion import MakeCompanion
from headrace.fleet.gateway.doubts import doubts
from headrace.fleet.gateway.models.canary_file import CanaryFile
from headrace.observe.logs import set_up_logging
from headrace.web.http_server import HttpServer, allow_open_files, http_config
from headrace.web.keys import KeyRing
from headrace.web.port import bind, url_of
from headrace.web.protocol import ConnectionBounds

#: Open files beside connections: two for each client at most, logs, stores.
SPARE_FILES = 256

#: Allocations before the collector looks, and looks at older objects: a request makes hundreds, nearly none in cycles.
GC_THRESHOLDS = (50_000, 20, 20)

log = logging.getLogger("headrace.fleet")


def run_gateway(
    file: Path,
    config: FleetConfig,
    *,
    clock: Clock | None = None,
    companion: MakeCompanion | None = None,
    announce: Callable[[str], None] = lambda _: None,
) -> int:
    """Serve until a signal; the exit code. Raises ConfigError for what the operator can mend.

    `announce` is told the address once requests are taken.
    """
    set_up_logging(config.gateway.log_level, config.gateway.log_format, process="gateway")
    sock = bind(config.gateway.host, config.gateway.port, setting="gateway.port")
    allow_open_files(2 * config.gateway.max_connections + SPARE_FILES)
    with sock, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        gateway = Gateway(file, config, clock or SystemClock(), companion)
        # What exists now lives as long as the process, and requests leave few cycles behind.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        return runner.run(gateway.run(sock, announce))


def check_parts(config: FleetConfig) -> None:
    """Raises ConfigError for replicas and keys that are well formed and yet cannot be used."""
    for spec in config.replicas:
        backend_for(spec)
    Directory(config.accounts, config.flow, SystemClock())


class Gateway:
    """One gateway process."""

    def __init__(
        self, file: Path, config: FleetConfig, clock: Clock, companion: MakeCompanion | None = None
    ) -> None:
        self._file = file
        self._config = config
        self._address = (config.gateway.host, config.gateway.port)
        self._started_with = config
        gateway = config.gateway
        self.dashboard = Dashboard(clock)
        self.parts = parts = build(config, clock, self.dashboard.finished, _slo_file(file, config))
        self.dashboard.watch(parts)
        admin = file_endpoints()
        self._companion = companion(parts, config, clock) if companion is not None else None
        keys = None
        if gateway.admin_keys is not None:
            keys = KeyRing(SecurityConfig(api_keys=gateway.admin_keys), clock)
            door = Door(keys)
            admin += Admin(parts.registry, self.reload, door, clock).endpoints()
            admin += AccountsAdmin(parts.books, door).endpoints()
            admin += CanariesAdmin(parts.canaries, door, clock).endpoints()
            if self._companion is not None:
                admin += self._companion.endpoints(keys)
            admin += ObjectivesAdmin(parts.slos, keys).endpoints()
            admin += self.dashboard.endpoints(keys)
        bounds = ConnectionBounds(
            max_connections=gateway.max_connections,
            read_timeout=gateway.read_timeout,
            stall_timeout=gateway.stall_timeout,
        )
        self.app = build_app(parts, admin, keys, config, clock)
        self._http = HttpServer(http_config(self.app, bounds, config.security))
        self._sources = Sources(self._all_sources(config))
        kept = config.models.file
        self._canary_file = (
            CanaryFile(Path(kept).expanduser(), parts.canaries, clock) if kept else None
        )
        if self._companion is not None:
            self._companion.on_change = self._discover
            self.dashboard.feeds = self.dashboard.feeds._replace(
                pools=self._companion.pools, decisions=self._companion.decisions
            )
        self._complaint = ""
        self._watching: asyncio.Task[None] | None = None
        self._num_signals = 0
        self._draining: asyncio.Task[None] | None = None

    async def run(
        self, sock: socket.socket, announce: Callable[[str], None] = lambda _: None
    ) -> int:
        """From the first connection to the last; the exit code."""
        self._handle_signals()
        await self.start()
        log.info(
            "headrace %s gateway at %s, %s",
            __version__,
            url_of(sock),
            counted(len(self.parts.registry), "replica"),
        )
        announce(url_of(sock, is_tls=self._config.security.ssl_certfile is not None))
        try:
            await self._http.serve(sockets=[sock])
        finally:
            await self.close()
        return 0

    async def start(self) -> None:
        """Look for replicas from now on. Raises ConfigError if those of the configuration cannot be."""
        await self.parts.books.start()
        self.parts.toolbox.start()
        if self._canary_file is not None:
            self._canary_file.load()
        if self._companion is not None:
            await self._companion.start()
        self.parts.slos.start()
        await self._discover()
        replicas = [replica.spec for replica in self.parts.registry]
        for doubt in (*self.parts.service.pipelines.doubts, *doubts(self._config, replicas)):
            log.warning("%s", doubt)
        self._watching = asyncio.create_task(self._watch(), name="discovery")
        if self._config.gateway.admin_keys is not None:
            self.dashboard.start()

    async def close(self) -> None:
        """Stop looking, and let go of all connections that are idle."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._companion is not None:
            await self._companion.close()
        parts = self.parts
        if self._canary_file is not None:
            await self._canary_file.save()
        await parts.slos.close()
        await self.dashboard.close()
        if parts.tracer is not None:
            await asyncio.to_thread(parts.tracer.exporter.close)
        await parts.shadows.close()
        await parts.toolbox.close()
        parts.service.pipelines.close()
        await parts.prober.close()
        await parts.knowledge.close()
        parts.admission.close()
        await parts.books.close()
        parts.registry.close()
        # Last: its disk may hang, and money is more than answers.
        await parts.service.cache.close()

    # -- replicas ---------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._config.discovery.period)
            self.parts.registry.forget_idle()
            try:
                if self._canary_file is not None:
                    await self._canary_file.save()
                await self._discover()
                self._complaint = ""
            except ConfigError as error:
                if str(error) != self._complaint:  # once, not at each look
                    self._complaint = str(error)
                    log.error("%s The replicas of before stay.", error)
            except Exception:
                log.exception("Looking for replicas failed")

    async def _discover(self) -> None:
        self.parts.registry.reconcile(await self._sources.list())

    def _all_sources(self, config: FleetConfig) -> dict[str, Discovery]:
        found = self._companion.sources() if self._companion is not None else {}
        return {**_sources(config), **found}

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

    def reload(self) -> list[str]:
        """Read the file again; no stream notices. Names of what waits for the next start.

        Raises ConfigError for a bad one, and all stays as it is.
        """
        config = read_fleet(self._file)
        check_parts(config)
        if self._companion is not None:
            self._companion.check(config)
        before = self.parts.service.pipelines
        self.parts.service.apply(config)
        if self.parts.service.pipelines is not before:
            for doubt in self.parts.service.pipelines.doubts:
                log.warning("%s", doubt)
        if self._companion is not None:
            self._companion.apply(config)
        self.parts.registry.apply(config.health, config.gateway.timeouts)
        self.parts.knowledge.apply(config.routing)
        self._sources.replace(self._all_sources(config))
        self.parts.slos.apply(config.slos, config.alerts)
        self.parts.requests.configure()
        waiting = needing_start(self._started_with, config)
        if (config.gateway.host, config.gateway.port) != self._address:
            waiting.append("the address")
        if waiting:
            log.warning("These take effect at the next start: %s", ", ".join(waiting))
        self._config = config
        log.info("The configuration was read again")
        return waiting

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
                await self.parts.service.drain()
        except TimeoutError:
            log.warning("Requests still run; they are cut off")
        self._http.should_exit = True


def _slo_file(file: Path, config: FleetConfig) -> Path | None:
    """Where counts of objectives are kept: several gateways of a fleet on one machine have ports of their own. None: nowhere,
    as in a container whose user has no home.
    """
    try:
        if config.alerts.file is not None:
            return Path(config.alerts.file).expanduser()
        directory = state_directory(fleet_name(config, file), config.drivers)
    except RuntimeError as error:
        if config.slos:
            log.warning("Error budgets are not kept over a restart: %s Set alerts.file.", error)
        return None
    return directory / f"slos-{config.gateway.port}.json"


def _sources(config: FleetConfig) -> dict[str, Discovery]:
    found: dict[str, Discovery] = {"the configuration": StaticDiscovery(config.replicas)}
    if config.discovery.file is not None:
        file = Path(config.discovery.file).expanduser()
        found[str(file)] = FileDiscovery(file)
    return found
