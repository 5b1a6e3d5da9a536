"""What the page shows of parts that a gateway may run without: pools that scale, decisions, alerts. All empty by default."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import Struct

from headrace.fleet.slo.alerts import AlertState
from headrace.fleet.slo.values import SloReport
from headrace.fleet.slo.watch import SloWatch

#: Rows of each list that are shown.
MAX_ROWS = 200


class PoolView(Struct, frozen=True, kw_only=True):
    """A pool as it is now."""

    name: str
    model: str
    driver: str
    min_replicas: int
    max_replicas: int
    ready: int
    pending: int = 0
    warm: int = 0
    desired: int | None = None
    """What the autoscaler wants; None: it has not said."""
    hourly_cost: float = 0.0
    """Of one replica."""


class DecisionView(Struct, frozen=True, kw_only=True):
    """What was decided of a pool, done for it, or went wrong."""

    at: float
    """`Clock.wall`."""
    pool: str
    kind: str = "decision"
    """decision, action or fault."""
    reason: str
    """One sentence with its figures."""
    current: int | None = None
    desired: int | None = None
    policy: str = ""
    limited_by: str = ""
    is_advisory: bool = False


class AlertView(Struct, frozen=True, kw_only=True):
    """An objective that is, or was, at risk."""

    name: str
    """Of the objective."""
    model: str
    severity: str
    """critical or warning."""
    is_firing: bool
    since: float
    """`Clock.wall` when it began, or when it ended."""
    summary: str
    """One sentence with its figures."""
    budget_left: float
    """Share of the error budget that is left, 0..1."""


def alerts_of(slos: SloWatch) -> list[AlertView]:
    """Those that fire, critical ones first, and then those that are over."""
    return [
        AlertView(
            name=alert.slo,
            model=alert.model,
            severity=str(alert.severity),
            is_firing=alert.state is AlertState.FIRING,
            since=alert.began if alert.ended is None else alert.ended,
            summary=alert.reason,
            budget_left=alert.budget_left,
        )
        for alert in (*slos.firing(), *slos.past())
    ]


class Feeds(NamedTuple):
    """Where each comes from; newest first, and each of a bounded length."""

    pools: Callable[[], Sequence[PoolView]] = lambda: ()
    decisions: Callable[[], Sequence[DecisionView]] = lambda: ()
    alerts: Callable[[], Sequence[AlertView]] = lambda: ()
    objectives: Callable[[], Sequence[SloReport]] = lambda: ()
