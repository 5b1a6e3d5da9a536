"""Which alerts there are: begun, made worse, told again, over. Pure; nothing is sent from here."""

from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headrace.config.fleet.slos import AlertsConfig, Measure, Severity
from headrace.config.units import format_duration
from headrace.fleet.slo.values import Burn, SloReport

#: Alerts that are over and still shown.
MAX_PAST: Final = 100


class AlertState(StrEnum):
    """Alertmanager's words."""

    FIRING = "firing"
    RESOLVED = "resolved"


class Alert(Struct, frozen=True, kw_only=True):
    """One objective for one model that is at risk, or was."""

    slo: str
    model: str
    severity: Severity
    state: AlertState
    reason: str
    """One sentence with the figures."""
    began: float
    """`Clock.wall`."""
    ended: float | None = None
    budget_left: float = 1.0


class KeptFiring(Struct, frozen=True, kw_only=True):
    """An alert that fires, as it goes over a restart."""

    alert: Alert
    told_ago: float
    """Seconds since it was told last."""


class KeptAlerts(Struct, frozen=True, kw_only=True):
    """What goes over a restart: what fires goes on firing, and is told no second time."""

    firing: tuple[KeptFiring, ...] = ()
    past: tuple[Alert, ...] = ()
    """The oldest first."""
    untold: dict[str, tuple[Alert, ...]] = {}
    """`Sender.id` → messages that this webhook has not taken, in order."""


class Alerts:
    """One alert at most for each objective and model: one that becomes critical, or is so no more, ends as what it was and
    begins as another. `update` it often.
    """

    def __init__(self, config: AlertsConfig) -> None:
        self.config = config
        self._firing: dict[tuple[str, str], _Firing] = {}
        self._past: deque[Alert] = deque(maxlen=MAX_PAST)

    def update(self, reports: Sequence[SloReport], now: float, wall: float) -> list[Alert]:
        """What is to be told; `now` is of `Clock.monotonic`, `wall` of `Clock.wall`."""
        told: list[Alert] = []
        seen = set()
        for report in reports:
            key = (report.slo, report.model)
            seen.add(key)
            if report.severity is not None:
                told += self._fire(key, report, report.severity, now, wall)
            elif key in self._firing:
                told += self._calm(key, now, wall)
        for key in [key for key in self._firing if key not in seen]:
            told.append(self._end(key, wall))  # its objective is no more
        return told

    def firing(self) -> list[Alert]:
        """Critical ones first, then the oldest."""
        alerts = [each.alert for each in self._firing.values()]
        return sorted(alerts, key=lambda a: (a.severity is not Severity.CRITICAL, a.began))

    def past(self) -> list[Alert]:
        """Those that are over, the last one first."""
        return list(reversed(self._past))

    def kept(self, now: float) -> KeptAlerts:
        """What goes over a restart, but for what is on its way."""
        firing = (
            KeptFiring(alert=f.alert, told_ago=now - f.told_at) for f in self._firing.values()
        )
        return KeptAlerts(firing=tuple(firing), past=tuple(self._past))

    def restore(self, kept: KeptAlerts, elapsed: float, now: float) -> None:
        """Go on from what was kept `elapsed` seconds ago. What was calm by then has to be calm anew: nobody has looked since."""
        for each in kept.firing:
            firing = _Firing(each.alert, now - each.told_ago - elapsed)
            self._firing[each.alert.slo, each.alert.model] = firing
        self._past.extend(kept.past)

    def _fire(
        self, key: tuple[str, str], report: SloReport, severity: Severity, now: float, wall: float
    ) -> list[Alert]:
        firing = self._firing.get(key)
        told: list[Alert] = []
        if firing is not None and severity is not firing.alert.severity:
            # Worse at once; better only when it has been for a while.
            if severity is Severity.CRITICAL or firing.is_over(now, self.config.resolve_after):
                told.append(self._end(key, wall))
                firing = None
            else:
                severity = firing.alert.severity
        elif firing is not None:
            firing.calm_since = None
        alert = Alert(
            slo=report.slo,
            model=report.model,
            severity=severity,
            state=AlertState.FIRING,
            reason=reason_of(report),
            began=wall if firing is None else firing.alert.began,
            budget_left=report.budget_left,
        )
        if firing is None:
            self._firing[key] = _Firing(alert, now)
            return [*told, alert]
        firing.alert = alert
        if now - firing.told_at >= self.config.repeat_after:
            firing.told_at = now
            told.append(alert)
        return told

    def _calm(self, key: tuple[str, str], now: float, wall: float) -> list[Alert]:
        is_over = self._firing[key].is_over(now, self.config.resolve_after)
        return [self._end(key, wall)] if is_over else []

    def _end(self, key: tuple[str, str], wall: float) -> Alert:
        alert = replace(self._firing.pop(key).alert, state=AlertState.RESOLVED, ended=wall)
        self._past.append(alert)
        return alert


class _Firing:
    """An alert that is not over."""

    def __init__(self, alert: Alert, now: float) -> None:
        self.alert = alert
        self.told_at = now
        self.calm_since: float | None = None

    def is_over(self, now: float, resolve_after: float) -> bool:
        """It is less than it was, now and for long enough. Call it whenever it is less."""
        if self.calm_since is None:
            self.calm_since = now
        return now - self.calm_since >= resolve_after


def reason_of(report: SloReport) -> str:
    """One sentence with the figures."""
    worst = max((b for b in report.burns if b.fires), key=_rank, default=None)
    within = (
        "answered" if report.threshold is None else f"within {format_duration(report.threshold)}"
    )
    bound = f"{report.target:.4%}".rstrip("0%").rstrip(".")
    what = "pauses" if report.measure is Measure.ITL else "requests"
    text = f"{report.measure} of {report.model}: {bound} % of {what} should be {within}"
    if worst is not None and worst.long is not None:
        left = f"{max(0.0, report.budget_left):.0%} of the error budget is left"
        text += (
            f"; over {format_duration(worst.long_seconds)} the budget for {format_duration(report.window)} burns "
            f"{worst.long:.1f} times too fast (limit {worst.limit:g}), {left}"
        )
    return text + "."


def _rank(burn: Burn) -> tuple[bool, float]:
    return burn.severity is Severity.CRITICAL, burn.limit
