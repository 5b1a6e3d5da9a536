"""The forecast knows the time of day, follows trends, and says nothing of what it has not seen."""

import math

import pytest
from tests.support.pool_signals import nothing_told, signals

from headrace.config.fleet.scaling import ForecastConfig, PolicyKind, ScalingConfig, TokenTargets
from headrace.fleet.autoscaler.forecast import Forecast
from headrace.fleet.autoscaler.scale import Bounds, ScalingState, decide
from headrace.fleet.autoscaler.series import Series

HOUR = 3600.0
CONFIG = ForecastConfig(season=24 * HOUR, bucket=HOUR / 2, min_lead=HOUR)


def seen(days: float, rate_at, forecast: Forecast | None = None, step: float = 300.0) -> Forecast:
    """After so many days from time 0 on; arrivals a second by the hour."""
    found = forecast or Forecast.empty(CONFIG)
    for number in range(int(days * 24 * HOUR / step)):
        wall = number * step
        arrivals = rate_at(wall / HOUR)
        found = found.note(signals(arrivals_per_second=arrivals), wall)
    return found


def daily(hour: float) -> float:
    """Quiet at night, busy from 9 to 17."""
    return 5.0 if 9 <= hour % 24 < 17 else 1.0


def test_nothing_seen_nothing_said() -> None:
    assert Forecast.empty(CONFIG).within(0.0, HOUR) is None
    quiet = Forecast.empty(CONFIG)
    for number in range(100):
        quiet = quiet.note(nothing_told(), number * 600.0)
    assert quiet.within(60_000.0, HOUR) is None


def test_the_next_morning_is_known() -> None:
    forecast = seen(2.0, daily)
    night, morning = 48 * HOUR + 3 * HOUR, 48 * HOUR + 8.6 * HOUR
    quiet, busy = forecast.within(night, HOUR), forecast.within(morning, HOUR)
    assert quiet is not None
    assert busy is not None
    assert quiet.arrivals == pytest.approx(1.0, abs=0.2)
    assert busy.arrivals == pytest.approx(5.0, abs=0.5)
    assert (busy.input_tokens, busy.output_tokens) == pytest.approx((100.0, 30.0))
    assert busy.tokens_per_second(0.2) == pytest.approx(5 * (20 + 30), rel=0.1)


def test_a_day_that_is_busier_than_the_last_ones_is_noticed() -> None:
    forecast = seen(2.0, daily)
    for number in range(48 * 12, int((48 + 8.5) * 12)):
        forecast = forecast.note(signals(arrivals_per_second=3.0), number * 300.0)
    busy = forecast.within((48 + 8.6) * HOUR, HOUR)
    assert busy is not None
    assert 6.0 < busy.arrivals < 7.5


def test_a_rise_that_was_never_seen_is_followed() -> None:
    forecast = seen(0.5, lambda hour: 1.0 + hour)
    ahead = forecast.within(12 * HOUR, 2 * HOUR)
    assert ahead is not None
    assert 13.0 < ahead.arrivals < 16.0


def test_a_fall_never_goes_below_nothing() -> None:
    series = Series(profile=(None,) * 10)
    for place, value in enumerate((10.0, 6.0, 2.0, 0.0)):
        series = series.note(place, value)
    assert all(value is not None and value >= 0.0 for value in series.ahead(4, 6))


def test_what_is_missing_leaves_no_mark() -> None:
    steady = seen(1.0, lambda _: 2.0)
    gap = steady
    for number in range(288, 400):
        gap = gap.note(nothing_told(), number * 300.0)
    later = gap.within(400 * 300.0, HOUR)
    assert later is not None
    assert later.arrivals == pytest.approx(2.0)


def test_a_clock_that_is_set_back_does_no_harm() -> None:
    forecast = seen(0.2, lambda _: 2.0)
    forecast = forecast.note(signals(arrivals_per_second=2.0), 100.0)
    found = forecast.within(5 * HOUR, HOUR)
    assert found is not None
    assert found.arrivals == pytest.approx(2.0)


def test_it_is_a_floor_that_the_reactive_loop_may_exceed() -> None:
    config = ScalingConfig(
        policy=PolicyKind.PREDICTIVE,
        forecast=CONFIG,
        tokens=TokenTargets(replica_tokens_per_second=50.0, load=1.0, prompt_weight=0.2),
        max_step_up=10,
    )
    state = ScalingState(forecast=seen(2.0, daily))
    bounds = Bounds("chat", 1, 20)
    dawn = 48 * HOUR + 8.5 * HOUR
    calm = signals(num_ready=1, num_running=0, slots=8, incoming_tokens_per_second=50.0)
    early, _ = decide(calm, state, config, bounds, wall=dawn, cold_start=30.0)
    assert early.desired == 5
    assert "forecast within 3600 s" in early.reason
    rush = signals(num_ready=5, num_running=0, slots=40, incoming_tokens_per_second=600.0)
    late, _ = decide(rush, state, config, bounds, wall=dawn, cold_start=30.0)
    assert late.desired == math.ceil(12 / 1.1)
    midnight, _ = decide(calm, state, config, bounds, wall=50 * HOUR, cold_start=30.0)
    assert midnight.desired <= 2


def test_a_longer_cold_start_looks_further_ahead() -> None:
    config = ScalingConfig(
        policy=PolicyKind.PREDICTIVE,
        forecast=CONFIG,
        tokens=TokenTargets(replica_tokens_per_second=50.0, load=1.0),
        max_step_up=10,
    )
    state = ScalingState(forecast=seen(2.0, daily))
    calm = signals(num_ready=1, num_running=0, slots=8, incoming_tokens_per_second=50.0)
    before_dawn = 48 * HOUR + 6 * HOUR
    near, _ = decide(calm, state, config, Bounds("chat", 1, 20), wall=before_dawn, cold_start=60.0)
    far, _ = decide(
        calm, state, config, Bounds("chat", 1, 20), wall=before_dawn, cold_start=4 * HOUR
    )
    assert near.desired < far.desired == 5


def test_other_settings_start_anew() -> None:
    forecast = Forecast.empty(CONFIG)
    assert forecast.suits(CONFIG)
    assert not forecast.suits(ForecastConfig(season=24 * HOUR, bucket=600.0))
    assert not forecast.suits(ForecastConfig(season=12 * HOUR, bucket=HOUR / 2))
