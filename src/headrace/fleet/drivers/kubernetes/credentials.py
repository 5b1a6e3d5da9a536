"""Who we are to the API server, and whom we take for it: files that a kubelet renews while we run."""

import ssl
from pathlib import Path
from typing import Final

from headrace.config import env
from headrace.config.fleet.drivers import KubernetesConfig
from headrace.config.secret import Secret
from headrace.core.errors import ConfigError, DriverError

_MAX_BYTES: Final = 64 * 1024


class Credentials:
    """Reads files when they have changed: tokens of service accounts live for an hour."""

    def __init__(self, config: KubernetesConfig) -> None:
        self._config = config
        self._directory = Path(config.credentials)
        self._known: dict[Path, tuple[tuple[int, int, int], str]] = {}

    @property
    def url(self) -> str:
        """Of the API server. Raises ConfigError where it is not known."""
        if self._config.api is not None:
            return self._config.api.rstrip("/")
        host = env.get("KUBERNETES_SERVICE_HOST")
        if host is None:
            raise ConfigError(
                "Pools on Kubernetes need drivers.kubernetes.api, or a gateway that runs in the cluster."
            )
        port = env.get("KUBERNETES_SERVICE_PORT") or "443"
        return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"

    @property
    def namespace(self) -> str:
        """Where the Deployments are. Raises ConfigError where it is not known."""
        if self._config.namespace is not None:
            return self._config.namespace
        found = self._read(self._directory / "namespace")
        if found is None:
            raise ConfigError("Pools on Kubernetes need drivers.kubernetes.namespace.")
        return found

    def token(self) -> str | None:
        """The bearer token as it is now; None: there is none, as behind `kubectl proxy`."""
        return self._read(self._directory / "token")

    def peer_token(self) -> Secret | None:
        """What pods trust a gateway by; None: nothing is configured. Raises DriverError for a file that is not there."""
        if self._config.peer_token_file is None:
            return None
        found = self._read(Path(self._config.peer_token_file))
        if not found:
            raise DriverError(f"{self._config.peer_token_file} cannot be read, or is empty.")
        return Secret(found)

    def authority(self) -> str | None:
        """The PEM text of the authority that signs for the API server."""
        return self._read(self._directory / "ca.crt")

    def _read(self, path: Path) -> str | None:
        try:
            found = path.stat()
            look = (found.st_mtime_ns, found.st_size, found.st_ino)
            known = self._known.get(path)
            if known is not None and known[0] == look:
                return known[1]
            with path.open("rb") as opened:
                text = opened.read(_MAX_BYTES).decode().strip()
        except (OSError, UnicodeDecodeError):
            return None
        self._known[path] = (look, text)
        return text


def tls_of(authority: str | None) -> ssl.SSLContext:
    """Trusts just that authority, or those of this machine. Raises DriverError for one that is no certificate."""
    try:
        return ssl.create_default_context(cadata=authority)
    except ssl.SSLError as error:
        raise DriverError(f"The cluster's ca.crt cannot be used: {error}.") from None
