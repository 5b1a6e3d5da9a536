"""The autoscaler's table: what is refused, and whose settings a pool has."""

from typing import Any

import pytest

from headrace.config.fleet.pools import PoolConfig
from headrace.config.fleet.root import FleetConfig
from headrace.config.fleet.scaling import (
    AutoscalerConfig,
    ForecastConfig,
    Objectives,
    PolicyKind,
    ScalingConfig,
    ScheduleRule,
    zone,
)
from headrace.core.errors import ConfigError


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"start": "8:00"}, "start must be HH:MM"),
        ({"end": "24:01"}, "end must be HH:MM"),
        ({"start": "08:00", "end": "08:00"}, "holds never"),
        ({"start": "24:00"}, "holds never"),
        ({"days": ()}, "holds never"),
    ],
    ids=str,
)
def test_rules_that_cannot_hold_are_refused(rule: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ScheduleRule(replicas=1, **rule)


def test_a_rule_may_go_past_midnight() -> None:
    assert ScheduleRule(replicas=1, start="22:00", end="06:00").end == "06:00"


@pytest.mark.parametrize("policy", [PolicyKind.SLO, PolicyKind.SCHEDULE])
def test_a_policy_needs_what_it_goes_by(policy: PolicyKind) -> None:
    with pytest.raises(ConfigError, match=policy.value):
        ScalingConfig(policy=policy)


def test_an_objective_is_enough_for_slo() -> None:
    assert ScalingConfig(policy=PolicyKind.SLO, slo=Objectives(attainment=0.99)).slo.is_set


@pytest.mark.parametrize("name", ["", "Mars/Phobos", "../../etc/passwd", "x" * 300, "\0"])
def test_time_zones_that_there_are_not_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="no time zone"):
        zone(name)


@pytest.mark.parametrize(("season", "bucket"), [(10.0, 5.0), (86_400.0, 1.0)])
def test_a_season_has_a_bounded_number_of_buckets(season: float, bucket: float) -> None:
    with pytest.raises(ConfigError, match="buckets"):
        ForecastConfig(season=season, bucket=bucket)


def test_a_pool_may_have_settings_of_its_own() -> None:
    own = ScalingConfig(policy=PolicyKind.QUEUE)
    config = AutoscalerConfig(pools={"chat": own})
    assert config.of("chat") is own
    assert config.of("other") is config.scaling


def test_settings_of_a_pool_that_there_is_not_are_a_slip() -> None:
    config = AutoscalerConfig(pools={"chta": ScalingConfig()})
    with pytest.raises(ConfigError, match="chta"):
        FleetConfig(pools=(PoolConfig(name="chat", model="m"),), autoscaler=config)
