"""The whole configuration of `headrace serve`."""

from msgspec import Struct

from headrace.config.engine import EngineConfig
from headrace.config.hosting import HostingConfig, ModelEntry
from headrace.config.server import ServerConfig


class ServeConfig(Struct, frozen=True, kw_only=True):
    """One server and its engine."""

    server: ServerConfig = ServerConfig()
    engine: EngineConfig = EngineConfig()
    hosting: HostingConfig = HostingConfig()
    models: tuple[ModelEntry, ...] = ()
    """Several models behind this server, the first being the default; each is loaded when it is asked for."""
