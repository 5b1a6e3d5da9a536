"""Objectives of service, and who is told when their error budgets burn.

Burn rates and windows as in the Google SRE workbook, chapter 5, "Multiwindow, Multi-Burn-Rate Alerts".
"""

import re
from collections.abc import Set
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated

from msgspec import Meta, Struct

from headrace.config.fleet.urls import check_url
from headrace.config.secret import Secret
from headrace.core.errors import ConfigError

Seconds = Annotated[float, Meta(gt=0, extra={"unit": "seconds"})]
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,62}[a-z0-9])?")
#: Seconds of the shortest and longest window of an objective.
_SHORTEST, _LONGEST = 60.0, 90 * 86_400.0
_MAX_OBJECTIVES = 100
_MAX_WEBHOOKS = 10
#: Share of bad ones that is enough for any rule.
_MOST_BAD = 0.9


class Measure(StrEnum):
    """What of a request an objective is about."""

    TTFT = "ttft"
    """Seconds from its arrival at the gateway to the first token of its stream."""
    TPOT = "tpot"
    """Seconds between its tokens, on average."""
    ITL = "itl"
    """Seconds between two of its tokens: here each pause counts, not each request."""
    E2E = "e2e"
    """Seconds from its arrival to its end."""
    AVAILABILITY = "availability"
    """Whether it was answered: errors of the fleet count against it, errors of clients do not."""


class Severity(StrEnum):
    """How much an alert wants of a person."""

    WARNING = "warning"
    """Look at it in working hours."""
    CRITICAL = "critical"
    """Look at it now."""


class Objective(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What share of which requests must be how good. Every model that it is about has a budget of its own."""

    name: str
    """Lower-case letters, digits and dashes."""
    measure: Measure
    """ttft, tpot, itl, e2e or availability."""
    threshold: Seconds | None = None
    """What a good request, or pause, takes at most; of all measures but availability."""
    target: Annotated[float, Meta(gt=0, lt=1)] = 0.99
    """Share that must be good; the rest is the error budget."""
    window: Seconds = 30 * 86_400.0
    """Seconds that the budget is for, such as 30d; they slide."""
    model: str = "*"
    """Models that it is about, as clients get them; `*` stands for any characters."""
    tenant: str = "*"
    """Tenants that it is about."""
    priority: str = "*"
    """Priority classes that it is about."""

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"The objective's name '{self.name[:60]}' must be 1 to 64 lower-case letters, digits and dashes.",
                place="name",
            )
        has_threshold = self.threshold is not None
        if has_threshold == (self.measure is Measure.AVAILABILITY):
            needs = "has no" if has_threshold else "needs a"
            raise ConfigError(
                f"The objective {self.name}: {self.measure} {needs} threshold.", place="threshold"
            )
        if not _SHORTEST <= self.window <= _LONGEST:
            raise ConfigError(
                f"The objective {self.name}: its window must be 1m to 90d.", place="window"
            )


class BurnRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fires when a budget burns so fast over a long window, and still does over a twelfth of it."""

    severity: Severity
    """warning or critical."""
    burn: Annotated[float, Meta(ge=1)]
    """Times as fast as would just use up the budget."""
    budget: Annotated[float, Meta(gt=0, lt=1)]
    """Share of the budget that is burnt when it fires. It says how long the window is: budget / burn of the objective's."""

    def limit(self, target: float) -> float:
        """Share of bad ones above which it fires. A loose target cannot burn so fast as a rule says: nine in ten will do."""
        return min(self.burn * (1.0 - target), _MOST_BAD)

    def long(self, window: float) -> float:
        """Seconds of its long window for an objective over `window` seconds."""
        return window * self.budget / self.burn

    def short(self, window: float) -> float:
        """Seconds of its short window: what has stopped burning resets within it."""
        return self.long(window) / 12


class Webhook(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who is told of alerts, in the words of Alertmanager's webhook (version 4)."""

    url: str
    """http:// or https://."""
    secret: Secret | None = None
    """Signs each message: HMAC-SHA256 over `x-headrace-timestamp`, a dot and the body, in `x-headrace-signature`."""
    timeout: Seconds = 5.0
    """Seconds for one try."""
    attempts: Annotated[int, Meta(ge=1, le=20)] = 6
    """Tries in all; between them 1, 2, 4, … seconds, at most 60."""
    headers: dict[str, Secret] = {}
    """Headers that are sent too, such as authorization."""

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        check_url("a webhook of alerts", self.url)


class AlertsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a burning budget is told, and to whom."""

    rules: tuple[BurnRule, ...] = (
        BurnRule(severity=Severity.CRITICAL, burn=14.4, budget=0.02),
        BurnRule(severity=Severity.CRITICAL, burn=6.0, budget=0.05),
        BurnRule(severity=Severity.WARNING, burn=1.0, budget=0.1),
    )
    """Any of them is enough; those of the defaults look at 1 h, 6 h and 3 days of a window of 30 days."""
    min_bad: Annotated[int, Meta(ge=1)] = 5
    """Bad requests in the long window below which none fires: one slow request in a quiet night is no alert."""
    period: Seconds = 5.0
    """Seconds between two looks."""
    resolve_after: Annotated[float, Meta(ge=0, extra={"unit": "seconds"})] = 60.0
    """Seconds for which no rule must hold before an alert is over."""
    repeat_after: Seconds = 4 * 3600.0
    """Seconds after which an alert that goes on is told again."""
    webhooks: tuple[Webhook, ...] = ()
    file: str | None = None
    """Where error budgets and alerts are kept over restarts of the gateway. Default in headrace's state directory, by the fleet's name
    and the gateway's port."""

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        if len(self.webhooks) > _MAX_WEBHOOKS:
            raise ConfigError(f"alerts.webhooks has more than {_MAX_WEBHOOKS} entries.")
        if len(self.rules) > _MAX_WEBHOOKS:
            raise ConfigError(f"alerts.rules has more than {_MAX_WEBHOOKS} entries.")


def check_objectives(objectives: tuple[Objective, ...]) -> None:
    """Raises ConfigError for two of one name, and for too many."""
    names = [objective.name for objective in objectives]
    if len(names) > _MAX_OBJECTIVES:
        raise ConfigError(f"slos has more than {_MAX_OBJECTIVES} objectives.")
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ConfigError(f"Two objectives have the name {name}.", place=f"slos[{index}].name")


def check_objective_classes(objectives: tuple[Objective, ...], classes: Set[str]) -> None:
    """Raises ConfigError for one about a class that there is not: it would never count a request."""
    for index, objective in enumerate(objectives):
        if not any(fnmatchcase(name, objective.priority) for name in classes):
            raise ConfigError(
                f"The objective {objective.name} has the priority '{objective.priority[:60]}', which is no class of flow.classes.",
                place=f"slos[{index}].priority",
            )
