"""`headrace serve`, first part: take the port and start the engine, before anything heavy is imported.

The engine process then loads its model while this process imports its web stack.
"""

import gc
import logging
from typing import NamedTuple

from msgspec import structs

from headrace.config.engine import paced
from headrace.config.hosting import HostedModel, StartAs, hosted_models
from headrace.config.root import ServeConfig
from headrace.config.server import ServerConfig
from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import ConfigError
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
    starts = plan_starts(config, build, environment)
    fd = config.server.listen_fd
    sock = bind(config.server.host, config.server.port) if fd is None else inherit(fd)
    processes = [launch(spec, clock) if is_now else None for _, spec, _, is_now in starts]
    # Imported only now: engines have started, and all processes load side by side.
    from headrace.server.models import ModelStart
    from headrace.server.serving import serve

    models = [
        ModelStart(hosted=hosted, spec=spec, lora_root=root, process=process)
        for (hosted, spec, root, _), process in zip(starts, processes, strict=True)
    ]
    return serve(config, models, sock, clock)


class Start(NamedTuple):
    """A model, how its engine is started, and whether that is done at once."""

    hosted: HostedModel
    spec: LaunchSpec
    lora_root: LoraRoot | None
    is_now: bool


def plan_starts(config: ServeConfig, build: str, environment: dict[str, str]) -> list[Start]:
    """Every model of the server, the default first. Raises ConfigError."""
    engine = config.engine
    if config.models:
        if config.server.kv_events is not None:
            raise ConfigError("kv_events is for one model, and several are given.")
        hosted = hosted_models(config.models, engine, config.hosting)
    else:
        names = engine.model.served_model_name
        hosted = (HostedModel(names=names, engine=engine, keep=True),)
    is_empty = config.hosting.start is StartAs.EMPTY
    starts = []
    for model in hosted:
        spec = launch_spec(structs.replace(config, engine=model.engine), build, environment)
        if is_empty:
            spec = structs.replace(spec, engine=None)
        root = model.engine.model.lora_root
        starts.append(Start(model, spec, None if root is None else LoraRoot(root), model.keep))
    return starts


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
    return LaunchSpec(
        engine=paced(config.engine, server.watchdog_timeout),
        build=build,
        kv_events=events,
        log_level=server.log_level,
        log_format=server.log_format,
        environment=environment,
    )
