"""The gRPC server beside the HTTP server, on the same event loop."""

from pathlib import Path
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from headrace.config.security import SecurityConfig
from headrace.config.server import ServerConfig
from headrace.core.errors import ConfigError
from headrace.server.replica import Replica
from headrace.server.rpc.calls import Calls, KeyGuard
from headrace.server.rpc.health import HEALTH, Health
from headrace.server.rpc.schema import SERVICE, Schema
from headrace.web.asgi import App

#: Calls that may run beside those that count: checks of health, and those that are told that there are too many.
_SPARE_CALLS: Final = 64
#: Seconds between two pings of a silent connection, and between those that a client may send.
_PING_PERIOD: Final = 20
_MIN_PING_PERIOD: Final = 5
#: Seconds that a connection without calls is kept.
_IDLE_SECONDS: Final = 300


class RpcServer:
    """Generation, health and reflection on one port."""

    def __init__(self, replica: Replica, inner: App, port: int) -> None:
        """Binds the port. Raises ConfigError."""
        config = replica.config
        self._health = Health((SERVICE,), lambda: replica.unready_reason is None)
        self._server: Any = grpc.aio.server(
            interceptors=(KeyGuard(replica.keys, (HEALTH,)),),
            options=_options(config),
            maximum_concurrent_rpcs=config.max_grpc_calls + _SPARE_CALLS,
        )
        calls = Calls(
            inner,
            replica.keys,
            max_calls=config.max_grpc_calls,
            stall_timeout=config.stall_timeout,
        )
        self._server.add_generic_rpc_handlers((calls.handlers(Schema()),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE, HEALTH, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        host = f"[{config.host}]" if ":" in config.host else config.host
        self.address = f"{host}:{self._bind(config.security, host, port)}"

    async def start(self) -> None:
        """Take calls."""
        await self._server.start()

    async def stop(self, patience: float) -> None:
        """Take no more, and end what is not over in `patience` seconds."""
        self._health.close()
        await self._server.stop(patience)

    def _bind(self, security: SecurityConfig, host: str, port: int) -> int:
        credentials = _credentials(security)
        try:
            if credentials is None:
                found: int = self._server.add_insecure_port(f"{host}:{port}")
            else:
                found = self._server.add_secure_port(f"{host}:{port}", credentials)
        except RuntimeError:
            found = 0
        if not found:
            raise ConfigError(
                f"gRPC cannot listen on {host}:{port}: choose another port with --grpc-port."
            )
        return found


def _options(config: ServerConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", config.max_grpc_message_bytes),
        ("grpc.max_metadata_size", config.max_header_bytes),
        ("grpc.absolute_max_metadata_size", config.max_header_bytes),
        ("grpc.max_concurrent_streams", config.max_grpc_calls + _SPARE_CALLS),
        ("grpc.keepalive_time_ms", _PING_PERIOD * 1000),
        ("grpc.keepalive_timeout_ms", int(config.stall_timeout * 1000)),
        ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_PERIOD * 1000),
        ("grpc.max_connection_idle_ms", _IDLE_SECONDS * 1000),
        ("grpc.so_reuseport", 0),  # a port in use is an error, not a port that is shared
    ]


def _credentials(security: SecurityConfig) -> Any:
    """The certificate that HTTP has; TLS 1.2 and later. None without one."""
    if security.ssl_certfile is None:
        return None
    chain = _read(security.ssl_certfile)
    key = _read(security.ssl_keyfile or security.ssl_certfile)
    authorities = None if security.ssl_ca_certs is None else _read(security.ssl_ca_certs)
    return grpc.ssl_server_credentials(
        [(key, chain)],
        root_certificates=authorities,
        require_client_auth=authorities is not None,
    )


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
