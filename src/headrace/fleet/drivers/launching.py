"""What a replica of a pool is started with: its command line, its environment, and how the gateway calls it."""

import secrets
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from headrace.config.fields import ConfigField, Kind, describe
from headrace.config.fleet.pools import PoolConfig
from headrace.config.fleet.replicas import ReplicaSpec
from headrace.config.load import load
from headrace.config.root import ServeConfig
from headrace.config.secret import Secret
from headrace.config.units import parse_flag
from headrace.core.errors import ConfigError

#: What the driver, the pool's own fields or the gateway decide.
_TAKEN: Final = {
    "host": "its driver chooses it",
    "port": "its driver chooses it",
    "listen_fd": "its driver chooses it",
    "model": "it stands in `model`",
    "role": "it stands in `role`",
    "trusted_peer_token": "it is made for the fleet",
    "control_token": "it is made for the fleet",
    "start": "warm_replicas says how many are parked",
    "api_keys": "replicas are asked by the gateway only, and clients' keys stand under accounts.keys",
    "api_key_file": "replicas are asked by the gateway only, and clients' keys stand under accounts.keys",
    "ssl_certfile": "replicas are asked by the gateway only",
    "ssl_keyfile": "replicas are asked by the gateway only",
    "ssl_keyfile_password": "replicas are asked by the gateway only",
    "ssl_ca_certs": "replicas are asked by the gateway only",
}
#: Variables of the gateway's operator that would make replicas something else than what their pool says.
_NOT_INHERITED: Final = (
    "HEADRACE_ADMIN_KEY",
    "HEADRACE_API_KEYS",
    "HEADRACE_API_KEY_FILE",
    "HEADRACE_SSL_CERTFILE",
    "HEADRACE_SSL_KEYFILE",
    "HEADRACE_SSL_KEYFILE_PASSWORD",
    "HEADRACE_SSL_CA_CERTS",
)
TOKEN_VARIABLE: Final = "HEADRACE_TRUSTED_PEER_TOKEN"
CONTROL_VARIABLE: Final = "HEADRACE_CONTROL_TOKEN"
#: The server goes on with what it has until its driver kills it: how long that may take is said when it is stopped.
_DRAIN_SECONDS: Final = 3600


def check_pool(pool: PoolConfig) -> None:
    """Raises ConfigError for flags that a server would refuse, or that are not the pool's to set."""
    known = {field.name: field for field in describe(ServeConfig)}
    values: dict[str, str | bool | Sequence[str]] = {}
    for flag, value in pool.serve.items():
        name = flag.lstrip("-").replace("-", "_")
        if name in _TAKEN:
            raise ConfigError(f"The pool {pool.name} cannot set {flag}: {_TAKEN[name]}.")
        field = known.get(name)
        if field is None or field.kind is Kind.TREE:
            raise ConfigError(
                f"The pool {pool.name} sets '{flag}', which is no flag of headrace serve."
            )
        values[field.path] = value if isinstance(value, bool) else str(value)
    try:
        load(ServeConfig, environment={}, flags=values)
    except ConfigError as error:
        raise ConfigError(f"The pool {pool.name}: {error}") from None


def serve_arguments(pool: PoolConfig, *, threads: int = 0, parked: bool = False) -> list[str]:
    """Of `headrace serve`, all but where it listens; nothing in it is secret. Raises ConfigError.

    `parked`: its model is loaded and gives its memory back until it is woken.
    """
    check_pool(pool)
    known = {field.name: field for field in describe(ServeConfig)}
    arguments = [f"--model={pool.model}", f"--role={pool.role}"]
    if parked:
        arguments.append("--start=parked")
    names = set()
    for flag, value in pool.serve.items():
        name = flag.lstrip("-").replace("-", "_")
        names.add(name)
        arguments.append(_argument(known[name], value))
    if "drain_timeout" not in names:
        arguments.append(f"--drain-timeout={_DRAIN_SECONDS}")
    if threads and "threads" not in names:
        arguments.append(f"--threads={threads}")
    return arguments


def serve_environment(token: Secret) -> dict[str, str]:
    """Changes to the environment of a replica: secrets stand here, where no other user sees them."""
    return {
        **dict.fromkeys(_NOT_INHERITED, ""),
        TOKEN_VARIABLE: str(token),
        CONTROL_VARIABLE: str(token),
    }


def new_id(pool: str) -> str:
    """A name that no replica had before."""
    return f"{pool}-{secrets.token_hex(5)}"


def replica_spec(
    pool: PoolConfig, *, replica_id: str, url: str, token: Secret | None
) -> ReplicaSpec:
    """How the gateway calls a replica of this pool."""
    spec = ReplicaSpec(
        url=url,
        id=replica_id,
        role=pool.role,
        version=pool.version,
        labels=pool.labels,
        price=pool.price,
        peer_token=token,
        control_token=token,
    )
    if pool.capabilities is not None:
        spec = replace(spec, capabilities=pool.capabilities)
    return spec


def noted(spec: ReplicaSpec) -> bytes:
    """How the gateway calls a replica, as JSON without its secrets, for a later controller."""
    return msgspec.json.encode(replace(spec, peer_token=None, control_token=None, api_key=None))


def recalled(data: bytes, *, replica_id: str, url: str, token: Secret, version: str) -> ReplicaSpec:
    """What was noted, with what is known for certain. Of a note that cannot be read, as of another release, nothing else."""
    basic = ReplicaSpec(
        url=url, id=replica_id, version=version, peer_token=token, control_token=token
    )
    try:
        spec = msgspec.json.decode(data, type=ReplicaSpec)
    except (ValueError, RecursionError, ConfigError):
        return basic
    return replace(
        spec, url=url, id=replica_id, api_key=None, peer_token=token, control_token=token
    )


def _argument(field: ConfigField, value: str | int | float | bool) -> str:
    if field.kind is Kind.FLAG:
        is_on = value if isinstance(value, bool) else parse_flag(str(value))
        return field.flag if is_on else f"--no-{field.flag.removeprefix('--')}"
    return f"{field.flag}={value}"
