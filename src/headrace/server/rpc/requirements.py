"""What `--grpc-port` needs, checked before anything is started or imported."""

from importlib.util import find_spec

from headrace.config.server import ServerConfig
from headrace.core.errors import ConfigError

_MODULES = ("grpc", "grpc_health", "grpc_reflection", "google.protobuf")


def check_grpc(config: ServerConfig) -> None:
    """Raises ConfigError where gRPC is wanted and cannot be served."""
    if config.grpc_port is None:
        return
    if not all(_is_there(name) for name in _MODULES):
        raise ConfigError("--grpc-port needs more packages: pip install 'headrace[grpc]'.")
    if config.security.ssl_keyfile_password is not None:
        raise ConfigError(
            "gRPC reads no key with a password: give --ssl-keyfile without one, or leave --grpc-port out."
        )


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of the package that should hold it
        return False
