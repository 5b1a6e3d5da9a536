"""Where replicas of pools run: what each kind of place has to be told."""

import re
from typing import Annotated

from msgspec import Meta, Struct

from headrace.core.errors import ConfigError

_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
Seconds = Annotated[float, Meta(gt=0, extra={"unit": "seconds"})]


class LocalConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Processes on this machine."""

    directory: str | None = None
    """Where it is noted what runs, with logs; on a local disk, and readable by nobody else. Default
    ~/.local/state/headrace/fleets/NAME."""
    max_log_bytes: Annotated[int, Meta(ge=64 * 1024, extra={"unit": "bytes"})] = 8 * 1024 * 1024
    """Bytes of each replica's log; of a longer one the last quarter is kept."""


class RayConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An existing Ray cluster."""

    address: str = "auto"
    """Where its head is: auto (the cluster that this machine is part of), HOST:PORT or ray://HOST:PORT."""
    namespace: str = "headrace"
    """Ray namespace of the actors."""
    timeout: Seconds = 30.0
    """Seconds that Ray may take for an answer."""


class KubernetesConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Deployments in a Kubernetes cluster, one for each pool."""

    api: str | None = None
    """Address of the API server; default the one of the cluster that this process runs in."""
    namespace: str | None = None
    """Namespace of the Deployments; default the one that this process runs in."""
    credentials: str = "/var/run/secrets/kubernetes.io/serviceaccount"
    """Directory with the service account's token, ca.crt and namespace; read again when they change."""
    port: Annotated[int, Meta(ge=1, le=65535)] = 8000
    """Port that replicas listen on, in their pods."""
    peer_token_file: str | None = None
    """File with the --trusted-peer-token of the pods, from the Secret that they have it from too."""
    timeout: Seconds = 10.0
    """Seconds that the API server may take for an answer."""

    def __post_init__(self) -> None:
        """Raises ConfigError for what cannot be an address or a namespace."""
        if self.api is not None and not self.api.startswith(("https://", "http://")):
            raise ConfigError(
                f"drivers.kubernetes.api must be http:// or https://, not '{self.api}'."
            )
        if self.namespace is not None and not _NAMESPACE.fullmatch(self.namespace):
            raise ConfigError(
                f"drivers.kubernetes.namespace '{self.namespace[:80]}' is no name of a namespace."
            )


class DriversConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where pools' replicas run."""

    local: LocalConfig = LocalConfig()
    ray: RayConfig = RayConfig()
    kubernetes: KubernetesConfig = KubernetesConfig()
