"""What is known of a request for objectives, and what they say of themselves."""

import hashlib
from enum import StrEnum
from typing import NamedTuple

import msgspec
from msgspec import Struct

from headrace.config.fleet.slos import BurnRule, Measure, Objective, Severity


class Verdict(StrEnum):
    """How a request ended, as far as availability goes."""

    GOOD = "good"
    BAD = "bad"
    """The fleet failed it."""
    NEITHER = "neither"
    """Its client left, sent something wrong, or was over a limit of its own."""


class Pauses(NamedTuple):
    """Times between tokens, counted apart: `counts[i]` of them were at most `bounds[i]` seconds, and above the bound before."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    """One more than `bounds`: the last are those above all of them."""

    def within(self, seconds: float) -> tuple[int, int]:
        """How many were at most this long, which must be one of the bounds, and how many were longer."""
        good = sum(
            n for bound, n in zip(self.bounds, self.counts, strict=False) if bound <= seconds
        )
        return good, sum(self.counts) - good


class Ended(Struct, frozen=True, kw_only=True):
    """A request that has ended. What was not measured is None: no objective counts it."""

    model: str
    tenant: str
    priority: str
    verdict: Verdict
    ttft: float | None = None
    """Seconds; of one whose client left before it, how long that client had waited."""
    tpot: float | None = None
    e2e: float | None = None
    pauses: Pauses | None = None
    has_first_token: bool = True
    """False: `ttft` is how long was waited in vain."""


class Burn(Struct, frozen=True, kw_only=True):
    """One rule at work."""

    severity: Severity
    limit: float
    """It fires above this in both windows."""
    long_seconds: float
    long: float | None
    """Times as fast as would just use up the budget; None: no request in the window."""
    short_seconds: float
    short: float | None
    fires: bool


class SloReport(Struct, frozen=True, kw_only=True):
    """One objective for one model, now."""

    slo: str
    model: str
    measure: Measure
    threshold: float | None
    target: float
    window: float
    """Seconds that the budget is for."""
    covered: float
    """Seconds of them that this gateway has seen."""
    good: int
    bad: int
    """Within the window: requests, or pauses between tokens."""
    attainment: float | None
    """Share that was good; None: there was nothing."""
    recent_seconds: float
    recent: float | None
    """The same over the last minute."""
    budget_left: float
    """Share of the error budget, 1 to 0, and below where it is overspent. While the window is not covered, what was not
    seen counts as traffic like the one that was, without a fault."""
    burns: tuple[Burn, ...]
    severity: Severity | None
    """The worst that its rules say now."""


class KeptBudget(Struct, frozen=True, kw_only=True):
    """What was counted for one objective and model, as it goes over a restart."""

    slo: str
    rules: str
    """Made of the objective and the rules: with others the counts say nothing."""
    model: str
    windows: tuple[tuple[tuple[int, int], ...], ...]
    """Of each window, good and bad by its steps, the last one first."""


class KeptBook(Struct, frozen=True, kw_only=True):
    """All of them."""

    seen: float
    """Seconds that gateways have counted, up to now."""
    budgets: tuple[KeptBudget, ...]


def rules_key(objective: Objective, rules: tuple[BurnRule, ...]) -> str:
    """The same for the same objective and rules, whatever process asks."""
    return hashlib.sha256(msgspec.json.encode((objective, rules))).hexdigest()[:32]
