"""Numbers out of a Prometheus text, whatever they are called this year."""

import math
from collections.abc import Mapping

Aliases = Mapping[str, tuple[str, ...]]
"""Our name of a number → the names it has had, newest first."""


def gauges(
    text: str, aliases: Aliases, *, largest: frozenset[str] = frozenset()
) -> dict[str, float]:
    """Our names with their values; a number under none of its names is left out, for absent is not 0.

    Series of one family (one per model, engine or rank) are added up, or the largest is taken for the names in
    `largest`. NaN, infinity and what is no number are skipped.
    """
    wanted = {name: ours for ours, names in aliases.items() for name in names}
    found: dict[str, dict[str, list[float]]] = {}
    for line in text.splitlines():
        if not line or line[0] == "#":
            continue
        name = line[: _end_of_name(line)]
        ours = wanted.get(name)
        if ours is None:
            continue
        value = _value(line)
        if value is not None:
            found.setdefault(ours, {}).setdefault(name, []).append(value)
    return {
        ours: (max if ours in largest else sum)(families[_first(aliases[ours], families)])
        for ours, families in found.items()
    }


def _first(names: tuple[str, ...], families: Mapping[str, list[float]]) -> str:
    return next(name for name in names if name in families)


def _end_of_name(line: str) -> int:
    for at, char in enumerate(line):
        if char in "{ \t":
            return at
    return len(line)


def _value(line: str) -> float | None:
    # Behind the labels, which may hold spaces and braces in quotes, come a value and perhaps a time.
    rest = line[line.rfind("}") + 1 :] if "{" in line else line.partition(" ")[2]
    words = rest.split()
    try:
        value = float(words[0])
    except (IndexError, ValueError):
        return None
    return value if math.isfinite(value) else None
