"""The only reader of the process environment.

Every accessor returns None for a variable that is unset or empty, and raises a `ConfigError` that names
the variable for one that cannot be read.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from headrace.config.units import parse_flag
from headrace.core.errors import ConfigError


def get(name: str) -> str | None:
    """The value as text."""
    return os.environ.get(name) or None


def get_int(name: str) -> int | None:
    """A whole number."""
    text = get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name} must be a whole number, not '{text}'.") from None


def get_float(name: str) -> float | None:
    """A finite number."""
    text = get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{name} must be a number, not '{text}'.") from None
    if value - value != 0.0:
        raise ConfigError(f"{name} must be a finite number, not '{text}'.")
    return value


def get_bool(name: str) -> bool | None:
    """1, true, yes, on; or 0, false, no, off."""
    text = get(name)
    if text is None:
        return None
    try:
        return parse_flag(text)
    except ValueError:
        raise ConfigError(f"{name} must be true or false, not '{text}'.") from None


def get_path(name: str) -> Path | None:
    """A path, with a leading ~ expanded."""
    text = get(name)
    return None if text is None else Path(text).expanduser()


def with_prefix(prefix: str) -> dict[str, str]:
    """All variables whose name starts with `prefix` and that are not empty."""
    return {name: text for name, text in os.environ.items() if name.startswith(prefix) and text}


def child(changes: Mapping[str, str]) -> dict[str, str]:
    """The environment for a child process: this one's, with `changes` laid over it."""
    return {**os.environ, **changes}


def cache_home() -> Path:
    """Where headrace keeps what it can fetch or compute again: $HEADRACE_CACHE, else the XDG cache."""
    return get_path("HEADRACE_CACHE") or _xdg("XDG_CACHE_HOME", ".cache")


def state_home() -> Path:
    """Where headrace notes what runs: $HEADRACE_STATE, else the XDG state directory."""
    return get_path("HEADRACE_STATE") or _xdg("XDG_STATE_HOME", ".local/state")


def _xdg(name: str, fallback: str) -> Path:
    base = get_path(name)
    # The XDG specification says that a relative path is to be ignored.
    if base is None or not base.is_absolute():
        base = Path.home() / fallback
    return base / "headrace"


def set_default(name: str, value: str) -> None:
    """Set a variable for this process and its libraries, unless the operator has set it."""
    os.environ.setdefault(name, value)
