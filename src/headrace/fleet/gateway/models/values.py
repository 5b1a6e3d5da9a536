"""What is asked of the rules of models, and what they answer."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from headrace.config.fleet.models import Cause


class Asked(Struct, frozen=True, kw_only=True):
    """A request as far as names of models look at it."""

    model: str
    """As the client named it."""
    key: str = ""
    """Who stays with an arm of a split: session, user or API key; empty: the draw decides."""
    body: Mapping[str, Any] = {}
    """Decoded; read only where tiers go by complexity."""
    draw: float = 0.0
    """Uniform in [0, 1)."""


class Target(Struct, frozen=True, kw_only=True):
    """Replicas of a model, perhaps only some of them."""

    model: str
    version: str = ""
    labels: Mapping[str, str] = {}
    when: tuple[Cause, ...] = ()
    """Of a fallback: the causes that lead to it."""

    def selects(self, version: str, labels: Mapping[str, str]) -> bool:
        """A replica of this version and with these labels is meant."""
        if self.version and self.version != version:
            return False
        # Asked several times for every request, and most targets have none.
        return not self.labels or all(
            labels.get(name) == value for name, value in self.labels.items()
        )

    def __str__(self) -> str:
        if not self.version and not self.labels:
            return self.model
        labels = ",".join(f"{name}={value}" for name, value in sorted(self.labels.items()))
        return "@".join(part for part in (self.model, self.version, labels) if part)


class Trial(Struct, frozen=True, kw_only=True):
    """Which arm of which split a request is in: outcomes are counted by it."""

    rule: str
    arm: str


class Route(Struct, frozen=True, kw_only=True):
    """Where a request may be sent."""

    targets: tuple[Target, ...]
    """The first one is meant; the others are fallbacks, in order, each for its causes."""
    trials: tuple[Trial, ...] = ()
    shadow: Target | None = None
    """What gets a copy of this request."""
    explanation: str = ""
    """For `x-headrace-model`: `fast -> small; tier small, complexity 0.12 (length 0.30)`. ASCII, one line."""

    def fallback(self, cause: Cause, tried: int) -> int | None:
        """The next target for a failure of this cause, when the first `tried` have failed; None: there is none."""
        for place in range(tried, len(self.targets)):
            if cause in self.targets[place].when:
                return place
        return None
