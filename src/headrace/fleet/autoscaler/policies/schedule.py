"""Floors by time of day."""

from datetime import datetime, timedelta

from headrace.config.fleet.scaling import Day, ScalingConfig, ScheduleRule, zone
from headrace.fleet.autoscaler.need import Need, Scene

_DAYS = tuple(Day)


def need(scene: Scene) -> Need:
    """What the rules say, whatever happens; 0 where none holds."""
    count, rule = floor(scene.config, scene.wall)
    said = "no rule holds now" if rule is None else f"from {rule.start} to {rule.end}"
    # Down to it at once: what N-1 replicas could do is not asked.
    return Need(replicas=count * scene.config.down_margin, reason=f"schedule: {said}")


def floor(config: ScalingConfig, wall: float) -> tuple[int, ScheduleRule | None]:
    """The largest number of the rules that hold at this time, and its rule."""
    if not config.schedule:
        return 0, None
    now = datetime.fromtimestamp(wall, zone(config.timezone))
    holding = [rule for rule in config.schedule if _holds(rule, now)]
    best = max(holding, key=lambda rule: rule.replicas, default=None)
    return (0, None) if best is None else (best.replicas, best)


def _holds(rule: ScheduleRule, now: datetime) -> bool:
    minute = now.hour * 60 + now.minute
    today, yesterday = _day(now), _day(now - timedelta(days=1))
    start, end = _minutes(rule.start), _minutes(rule.end)
    if start < end:
        return today in rule.days and start <= minute < end
    return (today in rule.days and minute >= start) or (yesterday in rule.days and minute < end)


def _day(time: datetime) -> Day:
    return _DAYS[time.weekday()]


def _minutes(text: str) -> int:
    hours, minutes = text.split(":")
    return int(hours) * 60 + int(minutes)
