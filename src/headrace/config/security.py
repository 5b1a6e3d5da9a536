"""Who may call a server, over what, and what of it is written down."""

import re

from msgspec import Struct

from headrace.config.secret import Secret
from headrace.core.errors import ConfigError

_ORIGIN = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+")


class SecurityConfig(Struct, frozen=True, kw_only=True):
    """Keys, TLS, browsers, and what may be logged."""

    api_key_file: str | None = None
    """File of API keys, one a line: KEY, NAME:KEY or NAME:sha256:HEX. Read again when it changes."""
    api_keys: Secret | None = None
    """API keys, separated by commas and written as in the file. A flag is seen by every user of the machine."""
    control_token: Secret | None = None
    """Secret of those who may park, wake, load and unload models (`x-headrace-control`); none: nobody may."""
    open_metrics: bool = False
    """Answer /metrics and /load without a key."""
    isolate_keys: bool = True
    """Keep the prefix caches of different API keys apart, so that none can time what another has asked."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may call from a browser, such as https://chat.example.com; * is any."""
    ssl_certfile: str | None = None
    """PEM file with the server's certificate and its chain: serve HTTPS."""
    ssl_keyfile: str | None = None
    """PEM file with the certificate's key; default the certificate's own file."""
    ssl_keyfile_password: Secret | None = None
    """Password of that key."""
    ssl_ca_certs: str | None = None
    """PEM file with authorities: only clients with a certificate of theirs are served."""
    trust_request_chat_template: bool = False
    """Render the template that a request brings in `chat_template`; in a sandbox, but it may take long."""
    log_prompts: bool = False
    """Log the bodies of requests, prompts and all, at level info."""

    def __post_init__(self) -> None:
        """Raises ConfigError for settings that cannot work together."""
        needing = ("ssl_keyfile", "ssl_keyfile_password", "ssl_ca_certs")
        if self.ssl_certfile is None and (name := next(filter(self._has, needing), None)):
            raise ConfigError(f"{name} needs ssl_certfile: without it there is no TLS.")
        for origin in self.cors_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"cors_origins must be * or origins such as https://chat.example.com, not '{origin}'."
                )

    def _has(self, name: str) -> bool:
        return getattr(self, name) is not None
