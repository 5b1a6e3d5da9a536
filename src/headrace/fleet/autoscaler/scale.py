"""From what a policy sees to a number of replicas: bounds, hysteresis, delays, steps. Pure: drive it with any clock.

    state = ScalingState()
    every few seconds:
        decision, state = decide(signals, state, config, bounds, wall=clock.wall(), cold_start=measured)

`decision.desired` counts replicas that are ready or pending; what is started or stopped for it must show in the next
signals as `num_pending` or as less of `num_ready`, which is all that keeps the loop from acting twice.

The rules, in order:
 * A need that cannot be told (None), or that is told by only some replicas, never takes any away.
 * Up as soon as the need is over the target by more than `tolerance`; down only to the number at which every one that
   stays is below `down_margin` of its target (N against N-1). Between the two nothing changes: constant load cannot flap.
 * Schedules and forecasts are floors under whatever the policy wants.
 * Down goes to the largest number wanted within `down_delay`, by steps with `down_pause` between them. A new controller has
   seen nothing yet and waits as long.
 * What a burst needed stays for `burst_memory`: the next one is there before replicas can be started. It starts none.
 * To zero only when it is known that nothing came, waits or runs for `zero_delay`; from zero at once.
"""

from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from headrace.config.fleet.scaling import PolicyKind, ScalingConfig
from headrace.config.units import counted
from headrace.fleet.autoscaler.forecast import Forecast
from headrace.fleet.autoscaler.need import Scene, replicas_down, replicas_up
from headrace.fleet.autoscaler.policies import predictive, schedule, tokens_per_second
from headrace.fleet.autoscaler.policies.choose import POLICIES
from headrace.fleet.autoscaler.values import Decision, Limit, Signals

#: Policies that know what a burst needs.
_KNOW_BURSTS = (PolicyKind.TOKENS_PER_SECOND, PolicyKind.PREDICTIVE)


class Bounds(NamedTuple):
    """What is allowed."""

    pool: str
    """Name for the decision."""
    least: int
    most: int
    surplus: int = 0
    """Of the replicas that there are, those that are only there while others are replaced."""


class ScalingState(Struct, frozen=True, kw_only=True):
    """What the past still means."""

    wishes: tuple[tuple[float, int], ...] = ()
    """Numbers wanted within `down_delay` by time, decreasing: older smaller ones mean nothing."""
    since: float | None = None
    """The first look."""
    above_since: float | None = None
    """Since when more are wanted than there are."""
    stepped_down: float | None = None
    """The last step down."""
    forecast: Forecast | None = None
    bursts: tuple[tuple[float, int], ...] = ()
    """What bursts needed within `burst_memory` by time, decreasing."""


class _Wish(NamedTuple):
    """A number on its way through the rules."""

    size: int
    reason: str
    limit: str = ""

    def held(self, size: int, limit: Limit) -> "_Wish":
        """As `size`, by this rule, if that differs."""
        return self if size == self.size else self._replace(size=size, limit=str(limit))


def decide(
    signals: Signals,
    state: ScalingState,
    config: ScalingConfig,
    bounds: Bounds,
    *,
    wall: float,
    cold_start: float = 0.0,
) -> tuple[Decision, ScalingState]:
    """One look. `cold_start`: seconds from a start to readiness as measured, for the forecast."""
    scene = Scene(signals=signals, config=config, wall=wall)
    state = _noted(state, scene)
    current = max(0, signals.num_ready + signals.num_pending - bounds.surplus)
    wish = _wanted(scene, current)
    wish = _floored(wish, scene, state, bounds, cold_start)
    wish = wish.held(max(wish.size, bounds.least), Limit.MIN_REPLICAS)
    wish = wish.held(min(wish.size, bounds.most), Limit.MAX_REPLICAS)
    wish, state = _delayed(wish, state, scene, current, bounds)
    wish = _stepped(wish, state, scene, current, bounds)
    if wish.size < current:
        state = replace(state, stepped_down=signals.at)
    decision = Decision(
        pool=bounds.pool,
        at=wall,
        current=current,
        desired=wish.size,
        policy=str(config.policy),
        reason=wish.reason,
        limited_by=wish.limit,
    )
    return decision, state


def is_asleep_worthy(signals: Signals, config: ScalingConfig) -> bool:
    """It is known, not assumed, that nothing came, waits or runs for as long as it takes to go to sleep."""
    return (
        signals.queue_size == 0
        and signals.num_reporting >= signals.num_ready
        and not signals.num_running
        and (signals.num_running is not None or not signals.num_ready)
        and signals.idle_seconds is not None
        and signals.idle_seconds >= config.zero_delay
    )


def _noted(state: ScalingState, scene: Scene) -> ScalingState:
    if state.since is None:
        state = replace(state, since=scene.signals.at)
    state = _burst_noted(state, scene)
    if scene.config.policy is not PolicyKind.PREDICTIVE:
        return state
    forecast = state.forecast
    if forecast is None or not forecast.suits(scene.config.forecast):
        forecast = Forecast.empty(scene.config.forecast)
    return replace(state, forecast=forecast.note(scene.signals, scene.wall))


def _burst_noted(state: ScalingState, scene: Scene) -> ScalingState:
    config = scene.config
    if config.policy not in _KNOW_BURSTS or config.slo.ttft is None:
        return replace(state, bursts=())
    burst = tokens_per_second.by_burst(scene)
    count = 0 if burst is None else replicas_up(burst, config.tolerance)
    bursts = _remembered(state.bursts, scene.signals.at, count, config.burst_memory)
    return replace(state, bursts=bursts)


def _wanted(scene: Scene, current: int) -> _Wish:
    """What the policy's need comes to."""
    signals, config = scene.signals, scene.config
    need = POLICIES[config.policy](scene)
    if need is None:
        return _Wish(current, _unknown(signals), str(Limit.MISSING_DATA) if current else "")
    low, high = replicas_up(need, config.tolerance), replicas_down(need, config.down_margin)
    wish = _Wish(min(max(current, low), max(low, high)), need.reason)
    if signals.num_reporting < signals.num_ready and wish.size < current:
        silent = signals.num_ready - signals.num_reporting
        wish = wish._replace(reason=f"{wish.reason}; {silent} replicas do not tell their load")
        return wish.held(current, Limit.MISSING_DATA)
    return wish


def _unknown(signals: Signals) -> str:
    if not signals.num_ready:
        return "no replica is ready, and nobody waits"
    return f"{signals.num_reporting} of {signals.num_ready} ready replicas tell their load: too little to go by"


def _floored(
    wish: _Wish, scene: Scene, state: ScalingState, bounds: Bounds, cold_start: float
) -> _Wish:
    """Schedule and forecast; and no sleep before its time."""
    signals, config = scene.signals, scene.config
    there_is_any = signals.num_ready + signals.num_pending > 0
    if not bounds.least and there_is_any and is_asleep_worthy(signals, config):
        wish = _Wish(0, f"no request for {signals.idle_seconds or 0.0:.0f} s")
    count, rule = schedule.floor(config, scene.wall)
    if rule is not None and count > wish.size:
        wish = _Wish(count, f"the schedule wants {count} from {rule.start} to {rule.end}")
    if state.forecast is not None:
        coming = predictive.floor(scene, state.forecast, cold_start)
        # What is more than nothing by a hair is no reason to keep a replica awake: it wakes in time.
        if coming is not None and coming.replicas >= config.tolerance:
            least = replicas_up(coming, config.tolerance)
            if least > wish.size:
                wish = _Wish(least, coming.reason)
    if bounds.least or wish.size:
        return wish
    if signals.queue_size:
        return _Wish(
            1, f"{counted(signals.queue_size, 'request')} in the queue, and no replica is ready"
        )
    if not there_is_any or is_asleep_worthy(signals, config):
        return wish
    return wish.held(1, Limit.COOLDOWN)


def _delayed(
    wish: _Wish, state: ScalingState, scene: Scene, current: int, bounds: Bounds
) -> tuple[_Wish, ScalingState]:
    """Up after `up_delay`, down to the largest wish of `down_delay`."""
    now, config = scene.signals.at, scene.config
    state = replace(state, wishes=_remembered(state.wishes, now, wish.size, config.down_delay))
    above = wish.size > current
    if not above:
        state = replace(state, above_since=None)
    elif state.above_since is None:
        state = replace(state, above_since=now)
    if above:
        is_urgent = not current or current < bounds.least
        waited = now - (state.above_since if state.above_since is not None else now)
        if waited < config.up_delay and not is_urgent:
            wish = wish.held(current, Limit.DELAY)
    elif wish.size < current:
        if not wish.size and not bounds.least:
            return wish, state  # asleep: it has been idle as long as it must
        is_new = now - (state.since if state.since is not None else now) < config.down_delay
        highest = current if is_new else max(count for _, count in state.wishes)
        # A bound that was lowered is kept at once.
        wish = wish.held(max(wish.size, min(current, highest, bounds.most)), Limit.COOLDOWN)
        burst = max((count for _, count in state.bursts), default=0)
        least = min(current, burst, bounds.most)
        if least > wish.size:
            said = f"a burst of the last {config.burst_memory / 60:.0f} min took {burst}"
            wish = _Wish(least, f"{wish.reason}; {said}", str(Limit.BURST))
    return wish, state


def _remembered(
    past: tuple[tuple[float, int], ...], now: float, count: int, span: float
) -> tuple[tuple[float, int], ...]:
    """And a number; what it outweighs is forgotten, so that the rest decreases and the first is the largest."""
    kept = [(at, wish) for at, wish in past if at > now - span and wish > count]
    # Bounded whatever the numbers do: of many, the oldest stand for all until they are too old.
    return (*kept[:63], (now, count))


def _stepped(wish: _Wish, state: ScalingState, scene: Scene, current: int, bounds: Bounds) -> _Wish:
    config = scene.config
    if wish.size > current:
        floor, _ = schedule.floor(config, scene.wall)
        step = current + max(config.max_step_up, current)
        return wish.held(
            min(wish.size, max(step, bounds.least, min(floor, bounds.most))), Limit.STEP
        )
    if wish.size < current and (wish.size or bounds.least):
        last = state.stepped_down
        kept = min(current, bounds.most)
        if last is not None and scene.signals.at - last < config.down_pause:
            return wish.held(kept, Limit.COOLDOWN)
        return wish.held(min(kept, max(wish.size, current - config.max_step_down)), Limit.STEP)
    return wish
