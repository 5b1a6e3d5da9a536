"""The policies by name."""

from collections.abc import Callable, Mapping
from typing import Final

from headrace.config.fleet.scaling import PolicyKind
from headrace.fleet.autoscaler.need import Need, Scene
from headrace.fleet.autoscaler.policies import (
    predictive,
    queue,
    schedule,
    slo,
    slots,
    tokens_per_second,
    utilisation,
)

POLICIES: Final[Mapping[PolicyKind, Callable[[Scene], Need | None]]] = {
    PolicyKind.QUEUE: queue.need,
    PolicyKind.SLOTS: slots.need,
    PolicyKind.TOKENS_PER_SECOND: tokens_per_second.need,
    PolicyKind.SLO: slo.need,
    PolicyKind.SCHEDULE: schedule.need,
    PolicyKind.PREDICTIVE: predictive.need,
    PolicyKind.UTILISATION: utilisation.need,
}
