"""Fleet mode stays within 10 % of detailed mode, which runs the real scheduler, ledger and gateway."""

from pathlib import Path

import pytest

from headrace.bench.simulate.options import (
    Curve,
    LoadOptions,
    Mode,
    PlaceOptions,
    ScaleOptions,
    SimulateOptions,
)
from headrace.bench.simulate.profile import Profile, StepTime
from headrace.bench.simulate.report import Report
from headrace.bench.simulate.run import simulate
from headrace.config.fleet.routing import RoutingPolicy
from headrace.config.fleet.scaling import PolicyKind
from headrace.core.errors import ConfigError

PROFILE = Profile(
    model="m",
    step=StepTime(fixed=0.01, prefill_token=0.0005, decode_row=0.0015, attended_token=3e-7),
    request_seconds=0.004,
    max_num_seqs=16,
)


def both(load: LoadOptions, **options: object) -> tuple[Report, Report]:
    made = [
        simulate(SimulateOptions(mode=mode, load=load, **options), PROFILE)  # type: ignore[arg-type]
        for mode in (Mode.FLEET, Mode.DETAILED)
    ]
    return made[0], made[1]


def check(fleet: Report, detailed: Report) -> None:
    assert fleet.num_requests == detailed.num_requests > 100
    assert fleet.attainment == pytest.approx(detailed.attainment, abs=0.05)
    assert fleet.output_tokens_per_second == pytest.approx(
        detailed.output_tokens_per_second, rel=0.1
    )
    for name in ("ttft", "tpot", "e2e"):
        ours, theirs = getattr(fleet, name), getattr(detailed, name)
        assert ours.mean == pytest.approx(theirs.mean, rel=0.1), name
        assert ours.p50 == pytest.approx(theirs.p50, rel=0.1), name


def test_modes_agree_under_a_moderate_load() -> None:
    check(
        *both(
            LoadOptions(duration=120.0, rate=4.0, input_tokens=300, output_tokens=60),
            scale=ScaleOptions(replicas=4),
        )
    )


def test_modes_agree_where_requests_wait() -> None:
    fleet, detailed = both(
        LoadOptions(duration=60.0, rate=8.0, input_tokens=400, output_tokens=80),
        scale=ScaleOptions(replicas=2),
        routing=RoutingPolicy.LEAST_OUTSTANDING_TOKENS,
    )
    assert detailed.attainment < 0.9
    check(fleet, detailed)


def test_modes_agree_where_prompts_share_their_beginning() -> None:
    load = LoadOptions(
        duration=100.0, rate=5.0, input_tokens=100, output_tokens=40, shared_tokens=1024
    )
    fleet, detailed = both(load, scale=ScaleOptions(replicas=3))
    check(fleet, detailed)
    assert fleet.cached_share == pytest.approx(detailed.cached_share, abs=0.05)
    assert detailed.cached_share > 0.8


@pytest.mark.parametrize("mode", Mode)
def test_replicas_that_are_killed_cost_time_and_no_request(mode: Mode) -> None:
    load = LoadOptions(duration=120.0, rate=2.0, input_tokens=200, output_tokens=40)
    place = PlaceOptions(kill_every=30.0, boot_time=2.0, boot_failures=0.3)
    options = SimulateOptions(
        mode=mode, load=load, place=place, scale=ScaleOptions(replicas=4), seed=3
    )
    report = simulate(options, PROFILE)
    assert report.num_kills >= 2
    assert report.num_boots >= report.num_kills
    assert report.errors == {}
    assert (
        report.output_tokens
        == simulate(
            SimulateOptions(mode=mode, load=load, scale=ScaleOptions(replicas=4), seed=3), PROFILE
        ).output_tokens
    )


@pytest.mark.parametrize("mode", Mode)
def test_the_same_seed_is_the_same_report(mode: Mode) -> None:
    load = LoadOptions(duration=40.0, rate=4.0)
    options = SimulateOptions(mode=mode, load=load, scale=ScaleOptions(replicas=2), seed=5)
    assert simulate(options, PROFILE) == simulate(options, PROFILE)


@pytest.mark.parametrize("policy", [PolicyKind.QUEUE, PolicyKind.UTILISATION])
def test_a_fleet_that_scales_is_the_same_in_both_modes(policy: PolicyKind) -> None:
    load = LoadOptions(
        duration=900.0, rate=4.0, curve=Curve.DAY, day_length=900.0, peak_ratio=6.0,
        input_tokens=300, output_tokens=40,
    )  # fmt: skip
    fleet, detailed = both(
        load,
        scale=ScaleOptions(replicas=2, policy=policy, max_replicas=8),
        place=PlaceOptions(boot_time=10.0),
    )
    assert fleet.replica_hours == pytest.approx(detailed.replica_hours, rel=0.1)
    assert fleet.attainment == pytest.approx(detailed.attainment, abs=0.05)
    assert 2 < fleet.peak_replicas <= 8
    assert {d.policy for d in fleet.decisions} == {str(policy)}
    ups = [d for d in fleet.decisions if d.desired > d.current]
    assert sum(d.desired - d.current for d in ups) == fleet.num_boots


def test_a_fleet_sleeps_and_wakes_without_losing_a_request(tmp_path: Path) -> None:
    fleet_file = tmp_path / "fleet.yaml"
    fleet_file.write_text(
        "pools:\n- {name: small, model: m, min_replicas: 0, max_replicas: 3, hourly_cost: 2.5}\n"
        "autoscaler: {scaling: {policy: queue, zero_delay: 20s, down_delay: 20s, down_pause: 1s}}\n"
    )
    load = LoadOptions(
        duration=1200.0, rate=0.02, variation=0.0, input_tokens=100, output_tokens=20
    )
    for mode in Mode:
        options = SimulateOptions(
            mode=mode,
            load=load,
            scale=ScaleOptions(replicas=0, fleet=str(fleet_file)),
            place=PlaceOptions(boot_time=5.0),
            seed=2,
        )
        report = simulate(options, PROFILE)
        assert report.errors == {}
        assert report.num_requests > 10
        assert report.num_boots > 3
        assert report.mean_replicas < 0.9
        assert report.cost == pytest.approx(2.5 * report.replica_hours)
        assert {d.desired for d in report.decisions} >= {0, 1}


def test_bounds_that_exclude_each_other_are_refused(tmp_path: Path) -> None:
    for scale in (
        ScaleOptions(policy=PolicyKind.QUEUE, min_replicas=5, max_replicas=4),
        ScaleOptions(replicas=0),
        ScaleOptions(fleet=str(tmp_path / "none.yaml")),
    ):
        with pytest.raises(ConfigError):
            simulate(SimulateOptions(scale=scale), PROFILE)
