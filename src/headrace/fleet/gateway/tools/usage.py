"""What all rounds of a loop cost together."""

from typing import Any


class RoundsUsage:
    """The sum of what each round told: every number, also those of the tables inside (cached tokens, reasoning)."""

    def __init__(self) -> None:
        self.sum: dict[str, Any] = {}
        self.num_rounds = 0

    def add(self, usage: object) -> None:
        """One round more."""
        self.num_rounds += 1
        if isinstance(usage, dict):
            self.sum = _added(self.sum, usage)


def _added(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    found = dict(one)
    for name, value in other.items():
        known = found.get(name)
        if isinstance(value, dict):
            found[name] = _added(known if isinstance(known, dict) else {}, value)
        elif _is_number(value) and _is_number(known):
            found[name] = known + value
        elif value is not None or name not in found:
            found[name] = value
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
