"""Settings that a running gateway does not take over: it was built with them."""

from typing import Final

from headrace.config.fleet.root import FleetConfig

#: Of `gateway`. Connections' bounds count for replicas that come later.
_OF_GATEWAY: Final = (
    "admin_keys",
    "max_connections",
    "max_idle_connections",
    "max_body_bytes",
    "max_buffered_bytes",
    "max_stream_buffer",
    "read_timeout",
    "stall_timeout",
    "log_level",
    "log_format",
)
#: Whole tables.
_TABLES: Final = ("security", "cache", "tracing")
#: Of `accounts`: where it is kept.
_OF_ACCOUNTS: Final = ("directory", "redis")


def needing_start(old: FleetConfig, new: FleetConfig) -> list[str]:
    """Names of settings that differ and count only from the next start on; `old` is what the gateway was started with."""
    pairs: list[tuple[str, object, object, str]] = [
        (f"gateway.{n}", old.gateway, new.gateway, n) for n in _OF_GATEWAY
    ]
    pairs += [(n, old, new, n) for n in _TABLES]
    pairs += [(f"accounts.{n}", old.accounts, new.accounts, n) for n in _OF_ACCOUNTS]
    pairs.append(("alerts.file", old.alerts, new.alerts, "file"))
    pairs.append(("models.file", old.models, new.models, "file"))
    return [name for name, a, b, field in pairs if getattr(a, field) != getattr(b, field)]
