"""The book of all objectives: every request that ends is judged once, and windows slide over the counts."""

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final

from headrace.config.fleet.slos import AlertsConfig, BurnRule, Measure, Objective, Severity
from headrace.fleet.slo.counts import SlidingCount
from headrace.fleet.slo.values import (
    Burn,
    Ended,
    KeptBook,
    KeptBudget,
    SloReport,
    Verdict,
    rules_key,
)
from headrace.observe.labels import BoundedNames

#: Seconds of "recent".
RECENT: Final = 60.0
#: Models that have budgets of their own under one objective; all others share one.
MAX_MODELS: Final = 100
#: Budgets that are kept over a restart.
MAX_KEPT: Final = 500


class SloBook:
    """Not thread-safe. Memory: a few kilobytes for each objective and model."""

    def __init__(self, objectives: Sequence[Objective], alerts: AlertsConfig, now: float) -> None:
        """`now` and all later ones are of `Clock.monotonic`."""
        self._models = BoundedNames(MAX_MODELS)
        self._objectives = tuple(objectives)
        self._alerts = alerts
        self._budgets: dict[tuple[str, str], _Budget] = {}
        self._began = now

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """As configured."""
        return self._objectives

    def configure(self, objectives: Sequence[Objective], alerts: AlertsConfig, now: float) -> None:
        """From now on; objectives that have not changed keep their counts, unless the rules have."""
        same = set(objectives) if alerts.rules == self._alerts.rules else set()
        self._budgets = {
            key: budget for key, budget in self._budgets.items() if budget.objective in same
        }
        for budget in self._budgets.values():
            budget.min_bad = alerts.min_bad
        if not self._objectives:
            self._began = now
        self._objectives, self._alerts = tuple(objectives), alerts

    @property
    def pause_bounds(self) -> tuple[float, ...]:
        """Seconds by which pauses between tokens must be counted, so that `note` can judge them."""
        return tuple(
            o.threshold for o in self._objectives if o.measure is Measure.ITL and o.threshold
        )

    def note(self, ended: Ended, now: float) -> list[tuple[str, str, int, int]]:
        """A request has ended. What was counted: objective, model, good, bad."""
        counted = []
        for objective in self._objectives:
            if not _is_about(objective, ended.model, ended.tenant, ended.priority):
                continue
            good, bad = judge(objective, ended)
            if good or bad:
                budget = self._budget(objective, ended.model, now)
                budget.add(now, good, bad)
                counted.append((objective.name, budget.model, good, bad))
        return counted

    def reports(self, now: float) -> list[SloReport]:
        """All objectives, for each model that there was a request of."""
        return [budget.report(now) for budget in self._budgets.values()]

    def kept(self, now: float) -> KeptBook:
        """What goes over a restart: the busiest `MAX_KEPT` budgets."""
        budgets = sorted(self._budgets.values(), key=lambda b: b.total(now), reverse=True)
        return KeptBook(
            seen=max(0.0, now - self._began),
            budgets=tuple(
                KeptBudget(
                    slo=budget.objective.name,
                    rules=rules_key(budget.objective, self._alerts.rules),
                    model=budget.model,
                    windows=budget.kept(now),
                )
                for budget in budgets[:MAX_KEPT]
            ),
        )

    def restore(self, kept: KeptBook, elapsed: float, now: float) -> int:
        """Go on from what `kept` gave `elapsed` seconds ago, before anything is noted; how many budgets that was. Those of
        objectives or rules that are others now begin anew. Seconds without a gateway are not seen.
        """
        self._began = min(self._began, now - kept.seen)
        known = {o.name: (o, rules_key(o, self._alerts.rules)) for o in self._objectives}
        restored = 0
        for old in kept.budgets:
            objective, rules = known.get(old.slo, (None, ""))
            if objective is not None and rules == old.rules:
                restored += self._budget(objective, old.model, now).restore(now, old, elapsed)
        return restored

    def worst_recent(self, model: str, now: float) -> SloReport | None:
        """The objective for this model that the last minute was farthest below; None: nothing is known."""
        known = [
            report
            for (_, name), budget in self._budgets.items()
            if name == model and (report := budget.report(now)).recent is not None
        ]
        return min(known, key=lambda r: (r.recent or 0.0) - r.target, default=None)

    def _budget(self, objective: Objective, model: str, now: float) -> "_Budget":
        label = self._models.label(model)
        found = self._budgets.get((objective.name, label))
        if found is None:
            # A gateway that runs for days has seen the days in which nobody asked, too.
            found = _Budget(objective, label, self._alerts, self._began)
            self._budgets[objective.name, label] = found
        return found


def judge(objective: Objective, ended: Ended) -> tuple[int, int]:
    """How many good and bad ones a request is; (0, 0) where the objective does not count it."""
    threshold = objective.threshold
    if threshold is None:
        good = ended.verdict is Verdict.GOOD
        return (int(good), int(not good)) if ended.verdict is not Verdict.NEITHER else (0, 0)
    if objective.measure is Measure.ITL:
        return ended.pauses.within(threshold) if ended.pauses is not None else (0, 0)
    seconds = {
        Measure.TTFT: ended.ttft, Measure.TPOT: ended.tpot, Measure.E2E: ended.e2e,
    }[objective.measure]  # fmt: skip
    if seconds is None:
        return 0, 0
    is_bad = seconds > threshold
    if objective.measure is Measure.TTFT and not ended.has_first_token and not is_bad:
        return 0, 0  # it left sooner than it was due
    return int(not is_bad), int(is_bad)


class _Budget:
    """One objective's for one model."""

    def __init__(
        self, objective: Objective, model: str, alerts: AlertsConfig, began: float
    ) -> None:
        self.objective = objective
        self.model = model
        self.min_bad = alerts.min_bad
        self._began = began
        self._window = SlidingCount(objective.window)
        self._recent = SlidingCount(min(RECENT, objective.window))
        self._rules = [_Rule(rule, objective) for rule in alerts.rules]

    @property
    def _all(self) -> tuple[SlidingCount, ...]:
        return (self._window, self._recent, *_counts(self._rules))

    def add(self, now: float, good: int, bad: int) -> None:
        for count in self._all:
            count.add(now, good, bad)

    def total(self, now: float) -> int:
        return sum(self._window.counts(now))

    def kept(self, now: float) -> tuple[tuple[tuple[int, int], ...], ...]:
        return tuple(count.kept(now) for count in self._all)

    def restore(self, now: float, old: KeptBudget, elapsed: float) -> bool:
        """False: it has not these windows."""
        if len(old.windows) != len(self._all):
            return False
        for count, kept in zip(self._all, old.windows, strict=True):
            count.restore(now, kept, elapsed)
        return True

    def report(self, now: float) -> SloReport:
        objective, allowed = self.objective, 1.0 - self.objective.target
        good, bad = self._window.counts(now)
        covered = min(objective.window, max(0.0, now - self._began))
        share = bad / (good + bad) if good + bad else None
        recent = self._recent.bad_share(now)
        burns = tuple(rule.burn(now, allowed, self.min_bad) for rule in self._rules)
        return SloReport(
            slo=objective.name,
            model=self.model,
            measure=objective.measure,
            threshold=objective.threshold,
            target=objective.target,
            window=objective.window,
            covered=covered,
            good=good,
            bad=bad,
            attainment=None if share is None else 1.0 - share,
            recent_seconds=self._recent.span,
            recent=None if recent is None else 1.0 - recent,
            budget_left=1.0 - (share or 0.0) / allowed * (covered / objective.window),
            burns=burns,
            severity=_worst(burn.severity for burn in burns if burn.fires),
        )


class _Rule:
    """A rule's two windows."""

    def __init__(self, rule: BurnRule, objective: Objective) -> None:
        self._rule = rule
        self.long = SlidingCount(rule.long(objective.window))
        self.short = SlidingCount(rule.short(objective.window))

    def burn(self, now: float, allowed: float, min_bad: int) -> Burn:
        long, short = self.long.bad_share(now), self.short.bad_share(now)
        limit = self._rule.limit(1.0 - allowed)
        is_fast = long is not None and short is not None and long > limit and short > limit
        return Burn(
            severity=self._rule.severity,
            limit=limit / allowed,
            long_seconds=self.long.span,
            long=None if long is None else long / allowed,
            short_seconds=self.short.span,
            short=None if short is None else short / allowed,
            fires=is_fast and self.long.counts(now)[1] >= min_bad,
        )


def _counts(rules: Iterable[_Rule]) -> Iterator[SlidingCount]:
    for rule in rules:
        yield rule.long
        yield rule.short


def _worst(severities: Iterable[Severity]) -> Severity | None:
    found = set(severities)
    return next((s for s in (Severity.CRITICAL, Severity.WARNING) if s in found), None)


def _is_about(objective: Objective, model: str, tenant: str, priority: str) -> bool:
    return (
        fnmatchcase(model, objective.model)
        and fnmatchcase(tenant, objective.tenant)
        and fnmatchcase(priority, objective.priority)
    )
