"""How long replicas take from being asked for to serving, by the way in which they start. Pure."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

#: Weight of a new value.
ALPHA: Final = 0.3


class StartKind(StrEnum):
    """From what a replica starts."""

    EXEC = "exec"
    """From nothing: a process that loads its model."""
    PRESTARTED = "prestarted"
    """A process without a model."""
    PARKED = "parked"
    """A replica that gave its memory back."""


class ColdStart(Struct, frozen=True, kw_only=True):
    """One that was seen."""

    pool: str
    kind: StartKind
    seconds: float


class ColdStarts:
    """Moving averages by pool and kind."""

    def __init__(self) -> None:
        self._means: dict[tuple[str, StartKind], float] = {}

    def note(self, start: ColdStart) -> None:
        """One more."""
        key = (start.pool, start.kind)
        old = self._means.get(key)
        self._means[key] = start.seconds if old is None else old + ALPHA * (start.seconds - old)

    def mean(self, pool: str, kind: StartKind) -> float | None:
        """Seconds; None: none was seen."""
        return self._means.get((pool, kind))

    def expected(self, pool: str) -> float:
        """Seconds to reckon with for one more replica: the slowest way, for warm ones may be used up. 0: none was seen."""
        return max((s for (name, _), s in self._means.items() if name == pool), default=0.0)

    def means(self) -> dict[str, dict[StartKind, float]]:
        """All of them, to be kept."""
        found: dict[str, dict[StartKind, float]] = {}
        for (pool, kind), seconds in self._means.items():
            found.setdefault(pool, {})[kind] = seconds
        return found

    def recall(self, pool: str, means: Mapping[StartKind, float]) -> None:
        """What was kept of a pool."""
        for kind, seconds in means.items():
            self._means[pool, kind] = max(0.0, seconds)

    def keep(self, pools: set[str]) -> None:
        """Forget others."""
        self._means = {key: mean for key, mean in self._means.items() if key[0] in pools}
