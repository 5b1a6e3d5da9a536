"""Sizes, durations and flags as people write them: 512MiB, 4GiB, 50ms, 30s, yes, off."""

import re

_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", re.ASCII)

_BYTES = {
    "": 1,
    "b": 1,
    "k": 1024,
    "m": 1024**2,
    "g": 1024**3,
    "t": 1024**4,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
    "tib": 1024**4,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
}
_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_SECONDS = {
    "": 1.0,
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
}
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


def parse_size(text: str) -> int:
    """Bytes. K, M, G and T alone are binary, as operators of caches mean them; kB, MB, … are decimal.

    Raises ValueError for anything else.
    """
    number, unit = _split(text, _BYTES, "a size such as 512MiB or 4GiB")
    return round(number * _BYTES[unit])


def parse_duration(text: str) -> float:
    """Seconds; a bare number is seconds. Raises ValueError for anything else."""
    number, unit = _split(text, _SECONDS, "a duration such as 50ms, 30s or 2m")
    return number * _SECONDS[unit]


def parse_flag(text: str) -> bool:
    """1, true, yes, on; or 0, false, no, off. Raises ValueError for anything else."""
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError(f"'{text}' is neither true nor false.")


def format_size(num_bytes: float) -> str:
    """The largest binary unit that leaves at least 1, with one decimal where it is not whole."""
    size, steps = float(num_bytes), 0
    while abs(size) >= 1024 and steps < len(_BINARY_UNITS) - 1:
        size /= 1024
        steps += 1
    number = f"{size:.0f}" if size == round(size) else f"{size:.1f}"
    return f"{number} {_BINARY_UNITS[steps]}"


def counted(number: int, noun: str) -> str:
    """A number of things, as one says it: 1 replica, 2 replicas."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _split(text: str, units: dict[str, int] | dict[str, float], what: str) -> tuple[float, str]:
    match = _QUANTITY.fullmatch(text)
    unit = match.group(2).lower() if match else ""
    if match is None or unit not in units:
        raise ValueError(f"'{text}' is not {what}.")
    return float(match.group(1)), unit


def format_duration(seconds: float) -> str:
    """As people write it: 30d, 6h, 5m, 500ms."""
    for unit, size in (("d", 86_400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= size and seconds / size < 100 and (seconds / size).is_integer():
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s" if seconds >= 1 else f"{seconds * 1e3:g}ms"
