"""What policies are shown, and what they answer."""

from math import ceil

from msgspec import Struct

from headrace.config.fleet.scaling import ScalingConfig
from headrace.fleet.autoscaler.values import Signals


class Need(Struct, frozen=True, kw_only=True):
    """How much work there is. Policies say nothing of steps, delays and bounds: those are `scale.py`'s."""

    replicas: float
    """Replicas that this work would keep exactly at their target; 1.4 is a whole one and 0.4 of another."""
    reason: str
    """The figures that led to it, without a full stop."""


class Scene(Struct, frozen=True, kw_only=True):
    """All that a policy sees."""

    signals: Signals
    config: ScalingConfig
    wall: float
    """Seconds since the epoch, for schedules."""


def most(*needs: Need | None) -> Need | None:
    """The largest of those that could be told; the first of equals."""
    known = [need for need in needs if need is not None]
    return max(known, key=lambda need: need.replicas, default=None)


def replicas_up(need: Need, tolerance: float) -> int:
    """Replicas that it takes at least, when it may be over its target by `tolerance`."""
    return ceil(need.replicas / (1.0 + tolerance) - 1e-9)


def replicas_down(need: Need, margin: float) -> int:
    """The fewest among which each would stay below `margin` of its target: the check of N replicas against N-1."""
    return ceil(need.replicas / margin - 1e-9)
