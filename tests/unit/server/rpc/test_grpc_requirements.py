"""What `--grpc-port` needs is said before anything starts."""

import pytest

from headrace.config.secret import Secret
from headrace.config.security import SecurityConfig
from headrace.config.server import ServerConfig
from headrace.core.errors import ConfigError
from headrace.server.rpc import requirements


def test_packages_that_are_missing_are_named_by_their_extra(monkeypatch):
    requirements.check_grpc(ServerConfig(grpc_port=0))
    monkeypatch.setattr(requirements, "_MODULES", ("grpc", "no_such_package.part"))
    requirements.check_grpc(ServerConfig())
    with pytest.raises(ConfigError, match=r"headrace\[grpc\]"):
        requirements.check_grpc(ServerConfig(grpc_port=0))


def test_a_key_with_a_password_is_refused():
    security = SecurityConfig(ssl_certfile="a.pem", ssl_keyfile_password=Secret("word"))
    with pytest.raises(ConfigError, match="password"):
        requirements.check_grpc(ServerConfig(grpc_port=0, security=security))
