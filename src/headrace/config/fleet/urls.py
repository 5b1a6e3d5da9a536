"""Addresses in a fleet's file."""

from urllib.parse import urlsplit

from headrace.core.errors import ConfigError


def check_url(what: str, url: str, *, place: str = "url") -> None:
    """Raises ConfigError for one that cannot be asked over HTTP; `what` says whose it is, `place` where it stands."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ConfigError(f"The url of {what} is no URL: '{url}'.", place=place) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"The url of {what} must be http:// or https://, not '{url}'.", place=place
        )
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError(f"The url of {what} must be ASCII without blanks.", place=place)
