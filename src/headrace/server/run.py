"""`headrace serve`, first part: take the port and start the engine, before anything heavy is imported.

The engine process then loads its model while this process imports its web stack.
"""

import gc
import logging

import msgspec

from headrace.config.root import ServeConfig
from headrace.config.server import ServerConfig
from headrace.core.clock import Clock, SystemClock
from headrace.engine.launch import LaunchSpec, launch
from headrace.engine.messages import DEFAULT_BUILD, KVEventsConfig
from headrace.observe.logs import set_up_logging
from headrace.server.lora_root import LoraRoot
from headrace.server.rpc.requirements import check_grpc
from headrace.web.keys import KeyRing
from headrace.web.port import bind, inherit, is_local
from headrace.web.tls import tls_context

log = logging.getLogger("headrace.server")


def run_server(
    config: ServeConfig,
    *,
    build: str = DEFAULT_BUILD,
    environment: dict[str, str] | None = None,
    clock: Clock | None = None,
) -> int:
    """Serve until a signal; the exit code. Raises ConfigError for what the operator can mend.

    `build` names another composition root, for tests.
    """
    # What is made until it is ready stays: the collector would look through it again and again.
    gc.disable()
    try:
        return _run(config, build, environment or {}, clock or SystemClock())
    finally:
        gc.enable()


def _run(config: ServeConfig, build: str, environment: dict[str, str], clock: Clock) -> int:
    set_up_logging(config.server.log_level, config.server.log_format, process="server")
    # What the operator can mend is said before a process is started.
    check_security(config.server, clock)
    check_grpc(config.server)
    root = config.engine.model.lora_root
    lora_root = None if root is None else LoraRoot(root)
    spec = launch_spec(config, build, environment)
    fd = config.server.listen_fd
    sock = bind(config.server.host, config.server.port) if fd is None else inherit(fd)
    process = launch(spec, clock)
    # Imported only now: the engine has started, and the two processes load side by side.
    from headrace.server.serving import serve

    return serve(config, spec, sock, process, clock, lora_root=lora_root)


def check_security(server: ServerConfig, clock: Clock) -> None:
    """Read what keys and certificates there are. Raises ConfigError; warns of an open door."""
    tls_context(server.security)
    if not KeyRing(server.security, clock).is_needed and not is_local(server.host):
        log.warning(
            "There are no API keys, and whoever reaches %s may use every route; see --api-key-file",
            server.host,
        )


def launch_spec(config: ServeConfig, build: str, environment: dict[str, str]) -> LaunchSpec:
    """What the engine process is started with."""
    server = config.server
    events = None
    if server.kv_events is not None:
        events = KVEventsConfig(
            endpoint=server.kv_events,
            topic=server.kv_events_topic,
            as_maps=server.kv_events_as_maps,
        )
    # A step that is expected to take long must not look like one that hangs.
    scheduler = config.engine.scheduler
    patience = server.watchdog_timeout / 4
    if not 0.0 < scheduler.max_step_time <= patience:
        scheduler = msgspec.structs.replace(scheduler, max_step_time=patience)
    return LaunchSpec(
        engine=msgspec.structs.replace(config.engine, scheduler=scheduler),
        build=build,
        kv_events=events,
        log_level=server.log_level,
        log_format=server.log_format,
        environment=environment,
    )
