"""The TLS side of the port, checked before anything is started."""

from typing import TYPE_CHECKING

from headrace.config.security import SecurityConfig
from headrace.core.errors import ConfigError

if TYPE_CHECKING:
    import ssl


def tls_context(security: SecurityConfig) -> "ssl.SSLContext | None":
    """TLS 1.2 and later with the operator's certificate; None without one. Raises ConfigError."""
    if security.ssl_certfile is None:
        return None
    import ssl  # most servers do without, and start sooner

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    password = security.ssl_keyfile_password
    try:
        # Without a password OpenSSL would ask at the terminal, and a server has none.
        context.load_cert_chain(
            security.ssl_certfile,
            security.ssl_keyfile,
            password=str(password) if password is not None else "",
        )
    except FileNotFoundError:
        files = " or ".join(filter(None, (security.ssl_certfile, security.ssl_keyfile)))
        raise ConfigError(f"There is no file {files}.") from None
    except OSError as error:
        raise ConfigError(
            f"The certificate {security.ssl_certfile} and its key cannot be used: {_reason(error)}."
        ) from None
    if security.ssl_ca_certs is not None:
        try:
            context.load_verify_locations(security.ssl_ca_certs)
        except OSError as error:
            raise ConfigError(
                f"The authorities in {security.ssl_ca_certs} cannot be read: {_reason(error)}."
            ) from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _reason(error: OSError) -> str:
    # An SSLError's reason is a word such as KEY_VALUES_MISMATCH.
    reason = getattr(error, "reason", None)
    return reason.lower().replace("_", " ") if reason else error.strerror or "unknown reason"
