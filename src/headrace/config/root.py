"""The whole configuration of `headrace serve`."""

from msgspec import Struct

from headrace.config.engine import EngineConfig
from headrace.config.server import ServerConfig


class ServeConfig(Struct, frozen=True, kw_only=True):
    """One server and its engine."""

    server: ServerConfig = ServerConfig()
    engine: EngineConfig = EngineConfig()
